"""`edge-fl bench codec`: what frames cost here."""

from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show

__all__ = ["codec"]


def codec(
    *,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 200,
    output: Output = None,
    json: Json = False,
) -> None:
    """Encode and decode frames, as ratios to a memory copy of the same bytes.

    Example: edge-fl bench codec -o docs/benchmarks/codec.md
    """
    from edge_fl.measure.codec import bench_codec

    show(bench_codec(repeats), output, as_json=json)
