"""`edge-fl bench brokers`, for which nothing is trained."""

from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["brokers"]

_FLEETS = ("10", "100", "300")


def brokers(
    *,
    agents: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Devices, or devices/of which are selected a round; repeat [default: {', '.join(_FLEETS)}]."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="What travels: a model of the zoo.")] = "mnist-mlp",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each.")] = 4,
    processes: Annotated[int, typer.Option(min=1, help="Processes that the devices are spread over.")] = 2,
    output: Output = None,
    json: Json = False,
) -> None:
    """Rounds over Mosquitto, over NATS, and over the embedded broker.

    Example: edge-fl bench brokers --agents 10 --agents 100 -o docs/benchmarks/brokers.md
    """
    from benchmarks.load.brokers import BrokersSetting, bench_brokers
    from benchmarks.load.turns import Fleet

    fleets = tuple(Fleet.parse(text) for text in agents or _FLEETS)
    with progress("bench brokers") as report:
        result = bench_brokers(BrokersSetting(model, fleets, rounds, processes), report)
    show(result, output, as_json=json)
