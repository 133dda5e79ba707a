"""`edge-fl bench chaos`."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["chaos"]


def chaos(
    *,
    method: Annotated[str, typer.Option(help="What the devices train by.")] = "fedbiad",
    devices: Annotated[int, typer.Option(min=1, help="Agents, each a process.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a run.")] = 100,
    every: Annotated[int, typer.Option(min=1, help="Rounds between two troubles.")] = 2,
    broker: Annotated[
        list[str] | None, typer.Option(help="mosquitto or embedded; repeat [default: both].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Keys what happens when.")] = 0,
    minutes: Annotated[float, typer.Option(help="A run that takes longer has failed.")] = 60.0,
    cache: Annotated[Path | None, typer.Option(help="Keep the exported bundle here.")] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Kill processes, lose and damage messages, break links, and compare with a quiet run.

    Example: edge-fl bench chaos --rounds 200 --every 1 -o docs/benchmarks/chaos.md
    """
    from tempfile import TemporaryDirectory

    from benchmarks.chaos import bench_chaos
    from device_sim.emulation.chaos import BROKERS, Chaos

    settings = [
        Chaos(method=method, devices=devices, rounds=rounds, every=every, broker=name, seed=seed, minutes=minutes)
        for name in broker or BROKERS
    ]
    with TemporaryDirectory() as scratch, progress("bench chaos") as report:
        result = bench_chaos(settings, cache or Path(scratch), report)
    show(result, output, as_json=json)
