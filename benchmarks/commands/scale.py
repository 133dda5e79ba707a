"""`edge-fl bench scale`, for which nothing is trained."""

from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["scale"]

_FLEETS, _WORKERS = ("1000/100", "1000", "10000/1000"), (0, 1, 2, 4)


def scale(
    *,
    agents: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Devices, or devices/of which are selected a round; repeat [default: {', '.join(_FLEETS)}]."
        ),
    ] = None,
    workers: Annotated[
        list[int] | None, typer.Option(min=0, max=64, help="Workers; repeat [default: 0, 1, 2, 4].")
    ] = None,
    model: Annotated[str, typer.Option(help="What travels: a model of the zoo.")] = "mnist-mlp",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each.")] = 4,
    processes: Annotated[int, typer.Option(min=1, help="Processes that the devices are spread over.")] = 2,
    slowed: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=100,
            help="Coordinator and workers run 5 ms of every so many times 5 ms, so that cores are free; repeat "
            "[default: 1 and 4].",
        ),
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """What coordinator, workers and broker take as devices, updates and workers grow.

    Example: edge-fl bench scale --agents 1000 --agents 10000/1000 -o docs/benchmarks/scale.md
    """
    from benchmarks.load.scale import ScaleSetting, bench_scale
    from benchmarks.load.turns import Fleet

    fleets = tuple(Fleet.parse(text) for text in agents or _FLEETS)
    with progress("bench scale") as report:
        setting = ScaleSetting(model, fleets, workers or _WORKERS, rounds, processes, slowed or (1, 4))
        result = bench_scale(setting, report)
    show(result, output, as_json=json)
