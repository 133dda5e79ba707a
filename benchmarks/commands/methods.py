"""`edge-fl bench methods`: methods and compressors side by side."""

from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.options import Partition

__all__ = ["methods"]


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
    output: Output = None,
    json: Json = False,
) -> None:
    """Methods and compressors side by side in simulation: accuracy and measured uplink.

    Example: edge-fl bench methods --recipe fedavg --recipe fedbiad+dgc -o docs/benchmarks/methods.md
    """
    from benchmarks.methods import Setting, bench_methods
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
    show(result, output, as_json=json)
