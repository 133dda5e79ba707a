"""Entries of a grid, picked in one operation: onnxruntime then copies once where cuts and a concatenation copy twice.

For runtimes with a quick kernel for ATen's ``index_select``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exporter.decompositions.windows import Axis

__all__ = ["Steps", "pick"]


@dataclass(frozen=True)
class Steps:
    """Entries ``start + i * step`` of an axis, for every ``i < count``; they may lie outside it."""

    start: int
    step: int
    count: int

    @classmethod
    def read(cls, axis: Axis) -> list["Steps"]:
        """What each entry of a kernel reads."""
        starts = (i * axis.dilation - axis.padding for i in range(axis.kernel))
        return [cls(start, axis.stride, axis.outputs) for start in starts]

    def outside(self, size: int) -> bool:
        """Whether any entry is outside an axis of ``size``."""
        return self.start < 0 or self.start + self.step * (self.count - 1) >= size

    def places(self) -> Tensor:
        """The entries, int64."""
        return torch.arange(self.start, self.start + self.step * self.count, self.step)


def pick(x: Tensor, down: Sequence[Steps], across: Sequence[Steps]) -> Tensor:
    """From ``x`` ``[N, H, W, M]`` the entries ``[N, len(down), len(across), h, w, M]``; 0 where there are none.

    All of ``down`` have one count h, all of ``across`` one count w.
    """
    n, m = x.shape[0], x.shape[3]
    height, width = int(x.shape[1]), int(x.shape[2])
    shape = [n, len(down), len(across), down[0].count, across[0].count, m]
    rows = torch.cat([steps.places() for steps in down]).reshape([len(down), 1, -1, 1])
    columns = torch.cat([steps.places() for steps in across]).reshape([1, len(across), 1, -1])
    at = rows * width + columns
    flat = x.reshape([n, height * width, m])
    if any(steps.outside(height) for steps in down) or any(steps.outside(width) for steps in across):
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        at = torch.where(inside, at, height * width)
        flat = torch.constant_pad_nd(flat, [0, 0, 0, 1])
    return torch.index_select(flat, 1, at.reshape([-1])).reshape(shape)
