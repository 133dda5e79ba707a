"""`edge-fl bench fleet`."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["fleet"]


def fleet(
    *,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each of the nine runs.")] = 10,
    local_steps: Annotated[int, typer.Option(min=1, help="Local SGD steps a round.")] = 200,
    deadline: Annotated[
        float, typer.Option(help="Seconds of a round; whoever takes longer is left behind.")
    ] = 8.5,
    scale: Annotated[float, typer.Option(help="Seconds that one of a device's takes here.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Keys every random draw of the runs.")] = 0,
    cache: Annotated[Path | None, typer.Option(help="Keep the exported bundle here.")] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Methods for devices of different means on 20 emulated devices in five tiers, beside the virtual clock.

    Example: edge-fl bench fleet -o docs/benchmarks/fleet.md
    """
    from tempfile import TemporaryDirectory

    from benchmarks.fleet import bench_fleet
    from benchmarks.fleet_runs import FleetSetting

    setting = FleetSetting(rounds=rounds, local_steps=local_steps, deadline=deadline, scale=scale, seed=seed)
    with TemporaryDirectory() as scratch, progress("bench fleet") as report:
        result = bench_fleet(setting, cache or Path(scratch), report)
    show(result, output, as_json=json)
