"""`edge-fl bench`: what edge-fl costs, each time as a ratio to something anyone can run."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from edge_fl.cli.bench_bound import bound
from edge_fl.cli.bench_chaos import chaos
from edge_fl.cli.bench_fleet import fleet
from edge_fl.cli.bench_grids import aggregation_rule, dropout_rate, table1, table2, tta, uplink
from edge_fl.cli.bench_load import load
from edge_fl.cli.bench_options import Json as _Json
from edge_fl.cli.bench_options import Output as _Output
from edge_fl.cli.bench_options import show as _show
from edge_fl.cli.bench_sparse import tcs, vardrop
from edge_fl.cli.bench_transfer import transfer
from edge_fl.cli.bench_widths import heterogeneous, od
from edge_fl.cli.options import Partition, runtime_name
from edge_fl.cli.progress import progress

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Measure edge-fl against its floor and its peers, in the same run.")

_Models = Annotated[list[str] | None, typer.Option("--model", help="A model; repeat for several [default: all].")]
_Runtimes = Annotated[
    list[str] | None,
    typer.Option("--runtime", help="A runtime; repeat for several [default: all installed].", parser=runtime_name),
]
_Results = Annotated[Path, typer.Option(help="Keeps what was found, so that the next run only does the rest.")]


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


@app.command("aggregate")
def aggregate(
    *,
    model: _Models = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 20,
    output: _Output = None,
    json: _Json = False,
) -> None:
    """Aggregate and decode a round's updates on the coordinator, as ratios to a memory copy of the same bytes.

    Example: edge-fl bench aggregate -o docs/benchmarks/aggregate.md
    """
    from edge_fl.bench.aggregate import bench_aggregate

    with progress("bench aggregate") as report:
        result = bench_aggregate(model or (), repeats, report)
    _show(result, output, as_json=json)


@app.command("step")
def step(
    *,
    model: _Models = None,
    runtime: _Runtimes = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 50,
    cache: Annotated[
        Path | None, typer.Option(help="Keep the exported bundles here, for as long as the exporter is the same.")
    ] = None,
    output: _Output = None,
    json: _Json = False,
) -> None:
    """One training step of each model in each runtime, full and half width: ratios to torch eager, memory, sizes.

    Example: edge-fl bench step --model fashion-mnist-mlp --runtime onnx -o docs/benchmarks/step.md
    """
    from edge_fl.bench.cases import case_names
    from edge_fl.bench.exported import chosen_runtimes
    from edge_fl.bench.step import StepSetting, bench_step

    with TemporaryDirectory() as scratch, progress("bench step") as report:
        setting = StepSetting(
            models=tuple(model or case_names()),
            runtimes=chosen_runtimes(runtime or ()),
            threads=threads,
            repeats=repeats,
            cache=cache or Path(scratch),
        )
        result = bench_step(setting, report)
    _show(result, output, as_json=json)


@app.command("parity")
def parity(
    *,
    model: _Models = None,
    runtime: _Runtimes = None,
    optimizer: Annotated[
        list[str] | None, typer.Option(help="sgd, momentum or adam; repeat for several [default: all].")
    ] = None,
    narrowed: Annotated[
        bool, typer.Option("--narrowed", help="The models with few units, in seconds each.")
    ] = False,
    results: _Results = Path("parity.json"),
    output: _Output = None,
    json: _Json = False,
) -> None:
    """How closely each runtime trains each model as torch does, by the proof that every export passes.

    Example: edge-fl bench parity --narrowed -o docs/benchmarks/parity.md
    """
    from edge_fl.bench.exported import chosen_runtimes
    from edge_fl.bench.parity import OPTIMIZERS, ProofSetting, bench_parity
    from exporter.zoo import model_names

    setting = ProofSetting(
        models=tuple(model or model_names()),
        runtimes=chosen_runtimes(runtime or ()),
        optimizers=tuple(optimizer or OPTIMIZERS),
        narrowed=narrowed,
    )
    with progress("bench parity") as report:
        result = bench_parity(setting, results, report)
    _show(result, output, as_json=json)


@app.command("support")
def support(
    *,
    runtime: _Runtimes = None,
    results: _Results = Path("support.json"),
    output: _Output = None,
    json: _Json = False,
) -> None:
    """Export a tiny model around each layer and operation for each runtime, and tabulate what comes of it.

    Example: edge-fl bench support -o docs/support.md
    """
    from edge_fl.bench.exported import chosen_runtimes
    from edge_fl.bench.support import bench_support
    from edge_fl.bench.support_cases import CASES

    with progress("bench support") as report:
        result = bench_support(CASES, chosen_runtimes(runtime or ()), results, report)
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


@app.command("simulator")
def simulator(
    *,
    population: Annotated[int, typer.Option(help="Clients in all.")] = 1000,
    clients: Annotated[int, typer.Option(help="Clients picked a round.")] = 100,
    steps: Annotated[int, typer.Option(help="Local SGD steps a round.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 10,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    flower_python: Annotated[
        Path | None,
        typer.Option(help="The Python of an environment with flwr[simulation] and torch, to compare with Flower."),
    ] = None,
    output: _Output = None,
    json: _Json = False,
) -> None:
    """Rounds of simulation, many clients at once and one by one, as ratios to a plain sequential torch loop.

    Example: edge-fl bench simulator --flower-python flower/bin/python -o docs/benchmarks/simulator.md
    """
    from edge_fl.bench.simulator import SimulatorSetting, bench_simulator

    setting = SimulatorSetting(population, clients, steps, rounds, threads)
    with progress("bench simulator") as report:
        result = bench_simulator(setting, report, flower_python)
    _show(result, output, as_json=json)


app.command("table1")(table1)
app.command("table2")(table2)
app.command("tta")(tta)
app.command("dropout-rate")(dropout_rate)
app.command("uplink")(uplink)
app.command("aggregation-rule")(aggregation_rule)
app.command("bound")(bound)
app.command("chaos")(chaos)
app.command("fleet")(fleet)
app.command("load")(load)
app.command("transfer")(transfer)
app.command("heterogeneous")(heterogeneous)
app.command("od")(od)
app.command("tcs")(tcs)
app.command("vardrop")(vardrop)
