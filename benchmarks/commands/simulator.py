"""`edge-fl bench simulator`: what a simulated round costs."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["simulator"]


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
    output: Output = None,
    json: Json = False,
) -> None:
    """Rounds of simulation, many clients at once and one by one, as ratios to a plain sequential torch loop.

    Example: edge-fl bench simulator --flower-python flower/bin/python -o docs/benchmarks/simulator.md
    """
    from benchmarks.simulator import SimulatorSetting, bench_simulator

    setting = SimulatorSetting(population, clients, steps, rounds, threads)
    with progress("bench simulator") as report:
        result = bench_simulator(setting, report, flower_python)
    show(result, output, as_json=json)
