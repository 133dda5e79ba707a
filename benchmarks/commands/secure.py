"""`edge-fl bench secure`."""

from pathlib import Path
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["secure"]


def secure(
    *,
    devices: Annotated[
        list[int] | None, typer.Option(min=6, help="Devices of a round; repeat [default: 30, 100, 300].")
    ] = None,
    flower_python: Annotated[
        Path | None,
        typer.Option(
            help="The Python of an environment with Flower (`pip install flwr`), to compare with SecAgg+."
        ),
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Sum updates that nobody sees, against the open sum and Flower's SecAgg+.

    Example: edge-fl bench secure --devices 30 --flower-python ../flower/bin/python
    """
    from benchmarks.secure import bench_secure

    with progress("bench secure") as report:
        result = bench_secure(devices or [30, 100, 300], None, report, flower_python)
    show(result, output, as_json=json)
