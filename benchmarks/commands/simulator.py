"""`edge-fl bench simulator`, `engines` and `population`: what a simulated round costs."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["engines", "population", "simulator"]


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
    pfl_python: Annotated[
        Path | None,
        typer.Option(help="The Python of an environment with pfl and torch, to compare with pfl-research."),
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Rounds of simulation, many clients at once and one by one, as ratios to a plain sequential torch loop.

    Example: edge-fl bench simulator --flower-python flower/bin/python -o docs/benchmarks/simulator.md
    """
    from benchmarks.simulator import Peers, SimulatorSetting, bench_simulator

    setting = SimulatorSetting(population, clients, steps, rounds, threads)
    with progress("bench simulator") as report:
        result = bench_simulator(setting, report, Peers(flower_python, pfl_python))
    show(result, output, as_json=json)


def engines(
    *,
    population: Annotated[int, typer.Option(help="Clients in all.")] = 500,
    clients: Annotated[int, typer.Option(help="Clients picked a round.")] = 100,
    steps: Annotated[int, typer.Option(help="Local SGD steps a round.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Turns each engine takes.")] = 8,
    workers: Annotated[int, typer.Option(min=1, help="Processes, and actors.")] = 2,
    output: Output = None,
    json: Json = False,
) -> None:
    """Rounds of simulation on Ray, as ratios to those by processes of one machine, with both kinds of sums.

    Example: edge-fl bench engines -o docs/benchmarks/engines.md
    """
    from benchmarks.engines import EnginesSetting, bench_engines

    setting = EnginesSetting(population, clients, steps, rounds, workers)
    with progress("bench engines") as report:
        result = bench_engines(setting, report)
    show(result, output, as_json=json)


def population(
    *,
    population: Annotated[
        list[int] | None,
        typer.Option(
            min=10, help="Clients in all; repeat for several [default: 4000, 20000, 100000].", show_default=False
        ),
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Clients picked a round.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each.")] = 20,
    processes: Annotated[int, typer.Option(min=1, help="Processes that train.")] = 2,
    output: Output = None,
    json: Json = False,
) -> None:
    """Simulations of ever more clients: time and memory. The largest takes 3 GB of the system's folder for files.

    Example: edge-fl bench population -o docs/benchmarks/population.md
    """
    from benchmarks.population import PopulationSetting, bench_population

    setting = PopulationSetting(tuple(population or (4_000, 20_000, 100_000)), clients, rounds, processes)
    with progress("bench population") as report:
        result = bench_population(setting, report)
    show(result, output, as_json=json)
