"""`edge-fl bench load`, for which nothing is trained."""

from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["load"]


def load(
    *,
    agents: Annotated[
        list[str] | None,
        typer.Option(help="Devices, or devices/of which are selected a round; repeat [default: 1000, 10000/500]."),
    ] = None,
    model: Annotated[str, typer.Option(help="What travels: a model of the zoo.")] = "mnist-mlp",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each.")] = 5,
    processes: Annotated[int, typer.Option(min=1, help="Processes that the devices are spread over.")] = 2,
    tls: Annotated[bool, typer.Option("--tls", help="Make every fleet's rounds once more, encrypted.")] = False,
    output: Output = None,
    json: Json = False,
) -> None:
    """Rounds with many devices on Mosquitto, beside a bare paho program that moves the same bytes.

    Example: edge-fl bench load --agents 1000 --agents 10000/500 -o docs/benchmarks/load.md
    """
    from benchmarks.load.bench import LoadSetting, bench_load
    from benchmarks.load.turns import Fleet

    fleets = tuple(Fleet.parse(text) for text in agents or ("1000", "10000/500"))
    with progress("bench load") as report:
        result = bench_load(LoadSetting(model, fleets, rounds, processes, tls), report)
    show(result, output, as_json=json)
