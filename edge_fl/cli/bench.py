"""`edge-fl bench`: what edge-fl costs, each time as a ratio to something anyone can run."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.bench.table import Result
from edge_fl.cli.options import Partition, runtime_name

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Measure edge-fl against its floor and its peers, in the same run.")

_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of Markdown.")]
_Output = Annotated[Path | None, typer.Option("--output", "-o", help="Also write the page to this file.")]


@app.command("codec")
def codec(
    *,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 200,
    output: _Output = None,
    json: _Json = False,
) -> None:
    """Encode and decode frames, as ratios to a memory copy of the same bytes.

    Example: edge-fl bench codec -o docs/benchmarks/codec.md
    """
    from edge_fl.bench.codec import bench_codec

    _show(bench_codec(repeats), output, as_json=json)


@app.command("step")
def step(
    *,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 300,
    runtime: Annotated[
        list[str] | None,
        typer.Option(help="Runtimes to time [default: onnx, executorch, torch_eager].", parser=runtime_name),
    ] = None,
    output: _Output = None,
    json: _Json = False,
) -> None:
    """One training step in every runtime at full and half width, as ratios to torch eager.

    Example: edge-fl bench step --runtime onnx -o docs/benchmarks/step.md
    """
    from edge_fl.bench.step import bench_step

    result = bench_step(repeats, tuple(runtime or ("onnx", "executorch", "torch_eager")))
    _show(result, output, as_json=json)


@app.command("methods")
def methods(
    *,
    recipe: Annotated[
        list[str] | None, typer.Option(help="A method, or method+compressor; repeat [default: all].")
    ] = None,
    dataset: Annotated[str, typer.Option(help="digits, mnist or fashion-mnist.")] = "fashion-mnist",
    clients: Annotated[int, typer.Option(help="Clients in all.")] = 100,
    clients_per_round: Annotated[int, typer.Option(help="Clients picked a round.")] = 10,
    partition: Partition = "labels=5",
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 60,
    local_steps: Annotated[int, typer.Option(help="Local SGD steps a round.")] = 20,
    lr: Annotated[float, typer.Option(help="SGD step size.")] = 0.1,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 3,
    output: _Output = None,
    json: _Json = False,
) -> None:
    """Methods and compressors side by side in simulation: accuracy and measured uplink.

    Example: edge-fl bench methods --recipe fedavg --recipe fedbiad+dgc -o docs/benchmarks/methods.md
    """
    from edge_fl.bench.methods import Setting, bench_methods
    from edge_fl.compressors.base import compressor_names
    from edge_fl.methods.base import method_names

    every = [*method_names(), *(f"fedbiad+{name}" for name in compressor_names())]
    setting = Setting(
        dataset=dataset,
        clients=clients,
        clients_per_round=clients_per_round,
        partition=partition,
        rounds=rounds,
        local_steps=local_steps,
        lr=lr,
        seeds=tuple(range(seeds)),
    )
    result = bench_methods(recipe or every, setting, lambda text: typer.echo(text, err=True))
    _show(result, output, as_json=json)


def _show(result: Result, output: Path | None, *, as_json: bool) -> None:
    typer.echo(result.json() if as_json else result.markdown())
    if output is not None:
        result.write(output)
