"""Whether a bundle holds every program that a method needs on a device."""

from collections.abc import Mapping

from edge_fl.core.bundle import Bundle
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import kept_counts, prefix_counts
from edge_fl.methods.base import Method

__all__ = ["missing_program"]


def missing_program(bundle: Bundle, runtime: str, method: Method, tier: int, batch: int) -> str | None:
    """Say which program ``method`` needs at ``tier`` and ``runtime`` has not in ``bundle``; None when it has all."""
    parts = {p.micro_batch for p in bundle.manifest.programs.get(runtime, ()) if p.kind == "step"}
    if uneven := [part for part in parts if batch % part]:
        return f"The bundle's steps take {uneven[0]} samples at a time: give a --batch that is a multiple, not {batch}."
    for variant, counts in method.programs(bundle.layout, tier):
        if bundle.manifest.step_program(runtime, variant, counts, batch) is None:
            kept = ", ".join(f"{block} {count}" for block, count in counts.items())
            needs = f"kept units {kept} and batch {batch}"
            missing = f"The bundle has no '{variant}' program for runtime '{runtime}', {needs}"
            width = _width_of(bundle.layout, counts)
            if width is None:
                return (
                    f"{missing}, and no width has those: take --runtime onnx, which runs any, or another method."
                )
            return (
                f"{missing}: export it with --variant {variant}, --batch {batch} and {width / 1000:g} among its "
                "--widths."
            )
    return None


def _width_of(layout: Layout, counts: Mapping[str, int]) -> int | None:
    """The roundest width, in thousandths, that stands for ``counts`` in an export."""
    roundest_first = sorted(range(1000, 0, -1), key=lambda width: (width % 100 > 0, width % 10 > 0))
    for width in roundest_first:
        if counts in (prefix_counts(layout, width), kept_counts(layout, 1000 - width)):
            return width
    return None
