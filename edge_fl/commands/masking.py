"""How commands tell which blocks mask which axes of a tensor."""

from edge_fl.core.layout import Axis, Tensor

__all__ = ["masking", "masking_text"]


def masking(tensor: Tensor) -> dict[str, list[list[str]]]:
    """The names of the blocks that mask each axis, in each mode."""
    return {"rows": [_blocks(axis) for axis in tensor.rows], "units": [_blocks(axis) for axis in tensor.units]}


def masking_text(axes: list[list[str]]) -> str:
    """One mode of :func:`masking` in words."""
    return "; ".join(f"axis {i} by {', '.join(blocks)}" for i, blocks in enumerate(axes) if blocks) or "-"


def _blocks(axis: Axis) -> list[str]:
    return [segment.block for segment in axis if segment.block is not None]
