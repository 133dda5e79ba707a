"""Sliding windows along one axis, in operations that every runtime has and that copy whole runs of memory.

A stride s is taken away by splitting the axis into its s *phases*, the entries s apart; each tap of a kernel then reads
one phase, moved by a whole number of entries. Tensors are batch-last, ``[..., C, H, W, B]``, so a move along H or W is
a copy of contiguous pieces. ``H`` and ``W`` are those axes counted from the end; their lengths must be plain numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["H", "W", "Axis", "Tap", "merge", "phases", "total", "window"]

H, W = -3, -2


@dataclass(frozen=True)
class Tap:
    """One entry of a kernel: output i reads entry ``i + shift`` of phase ``phase``."""

    phase: int
    shift: int


@dataclass(frozen=True)
class Axis:
    """A kernel on an axis of ``size`` entries."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    ceil: bool = False

    @property
    def outputs(self) -> int:
        """How often the kernel fits; with ``ceil`` also where it only starts inside (or in the front padding)."""
        room = self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        if not self.ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - 1 if (count - 1) * self.stride >= self.size + self.padding else count

    @property
    def rows(self) -> int:
        """Entries of a phase."""
        return -(-self.size // self.stride)

    @property
    def taps(self) -> list[Tap]:
        """One for each entry of the kernel, in order."""
        starts = (i * self.dilation - self.padding for i in range(self.kernel))
        return [Tap(start % self.stride, start // self.stride) for start in starts]


def window(x: Tensor, dim: int, start: int, length: int, fill: float = 0.0) -> Tensor:
    """Entries ``start .. start + length`` of axis ``dim``; ``fill`` where there are none."""
    dim %= x.dim()
    size = int(x.shape[dim])
    before, after = -start, start + length - size
    if before == after == 0:
        return x
    if start >= size or start + length <= 0:
        return torch.full([*x.shape[:dim], length, *x.shape[dim + 1 :]], fill, dtype=x.dtype, device=x.device)
    if before <= 0 and after <= 0:
        return x.narrow(dim, start, length)
    # One operation even where it cuts and pads at once: onnxruntime then copies once.
    return torch.constant_pad_nd(x, [0, 0] * (x.dim() - 1 - dim) + [before, after], fill)


def phases(x: Tensor, dim: int, stride: int, fill: float = 0.0) -> list[Tensor]:
    """The ``stride`` phases of axis ``dim``, each of ceil(size / stride) entries, the last of them ``fill`` if short."""
    if stride == 1:
        return [x]
    dim %= x.dim()
    rows = -(-int(x.shape[dim]) // stride)
    whole = window(x, dim, 0, rows * stride, fill)
    split = whole.reshape([*x.shape[:dim], rows, stride, *x.shape[dim + 1 :]])
    return [split.narrow(dim + 1, phase, 1).squeeze(dim + 1) for phase in range(stride)]


def merge(parts: Sequence[Tensor | None], dim: int, size: int) -> Tensor:
    """The axis of ``size`` entries whose phases are ``parts``; None stands for zeros."""
    first = next(part for part in parts if part is not None)
    if len(parts) == 1:
        return window(first, dim, 0, size)
    dim %= first.dim()
    filled = [torch.zeros_like(first) if part is None else part for part in parts]
    joined = torch.cat([part.unsqueeze(dim + 1) for part in filled], dim + 1)
    rows = int(first.shape[dim]) * len(parts)
    return window(joined.reshape([*first.shape[:dim], rows, *first.shape[dim + 1 :]]), dim, 0, size)


def total(terms: Sequence[Tensor]) -> Tensor:
    """The sum, in pairs: rounding errors grow with the logarithm of their number."""
    level = list(terms)
    while len(level) > 1:
        level = [level[i] + level[i + 1] if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
    return level[0]
