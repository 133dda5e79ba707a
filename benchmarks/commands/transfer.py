"""`edge-fl bench transfer`, for which nothing is trained."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["transfer"]


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
