"""`edge-fl bench transfer` and `wire`: what travels between devices and broker."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["transfer", "wire"]


def transfer(
    *,
    model: Annotated[str, typer.Option(help="What travels: a model of the zoo.")] = "wikitext-2-lstm",
    devices: Annotated[int, typer.Option(min=1, help="Devices, each on a line of its own.")] = 20,
    down: Annotated[float, typer.Option(help="Mbps to a device.")] = 110.6,
    up: Annotated[float, typer.Option(help="Mbps from a device.")] = 14.0,
    loss: Annotated[float, typer.Option(help="Share of the MQTT messages that a line loses, each way.")] = 0.01,
    latency: Annotated[float, typer.Option(help="Seconds that a line takes, each way.")] = 0.02,
    cache: Annotated[Path | None, typer.Option(help="Keep the exported bundle here.")] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """A large model to devices on slow, lossy lines and updates back, while the broker is killed and started again.

    Example: edge-fl bench transfer -o docs/benchmarks/transfer.md
    """
    from tempfile import TemporaryDirectory

    from benchmarks.transfer import Line, TransferSetting, bench_transfer

    setting = TransferSetting(model, devices, Line(down, up, loss, latency))
    with TemporaryDirectory() as scratch, progress("bench transfer") as report:
        result = bench_transfer(setting, cache or Path(scratch), report)
    show(result, output, as_json=json)


def wire(
    *,
    model: Annotated[str, typer.Option(help="What is trained: a model of the zoo.")] = "fashion-mnist-mlp",
    devices: Annotated[int, typer.Option(min=1, help="Device processes.")] = 4,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds; the first two are not counted.")] = 8,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A recipe with parameters, such as 'fedavg+topk topk.ratio=0.02'; repeat for several."),
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Keep the exported bundle here.")] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """What the wire carries for each client and round of a real fleet, beside the updates' frames.

    Example: edge-fl bench wire --method fedavg --method best-uplink -o docs/benchmarks/wire.md
    """
    from tempfile import TemporaryDirectory

    from benchmarks.wire import METHODS, WireSetting, bench_wire

    setting = WireSetting(model, devices, rounds, tuple(method or METHODS))
    with TemporaryDirectory() as scratch, progress("bench wire") as report:
        result = bench_wire(setting, cache or Path(scratch), report)
    show(result, output, as_json=json)
