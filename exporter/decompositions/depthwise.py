"""Depthwise convolution: one multiplication and addition for each entry of the kernel, over whole moved inputs.

Tensors are ``[C, H, W, B]``, weights ``[C, kh, kw]``; any number of channels, so that kept units stay free.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from exporter.decompositions.windows import Axis, Cut, H, Phases, W, merge, total, window

__all__ = ["Depthwise"]


@dataclass(frozen=True)
class Depthwise:
    """A convolution of every channel by itself, with the kernel ``h`` x ``w``."""

    h: Axis
    w: Axis

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The output ``[C, Ho, Wo, B]``."""
        moved = self._moved(x)
        return total([part * self._entry(weight, *place) for place, part in moved.items()])

    def weight_gradient(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient ``[C, kh, kw]`` of the weights, from the output's."""
        sums = [(gradient * part).sum([1, 2, 3]) for part in self._moved(x).values()]
        entries = torch.cat([entry.unsqueeze(1) for entry in sums], 1)
        return entries.reshape([gradient.shape[0], self.h.kernel, self.w.kernel])

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """The gradient ``[C, H, W, B]`` of the input, from the output's."""
        terms: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for row, down in enumerate(self.h.taps):
            for column, across in enumerate(self.w.taps):
                cuts = Cut(H, -down.shift, self.h.rows), Cut(W, -across.shift, self.w.rows)
                moved = window(gradient, *cuts)
                terms[down.phase, across.phase].append(moved * self._entry(weight, row, column))
        by_row: list[Tensor | None] = []
        for row in range(self.h.stride):
            parts = [total(terms[row, q]) if (row, q) in terms else None for q in range(self.w.stride)]
            read = any(part is not None for part in parts)
            by_row.append(merge(parts, W, self.w.size) if read else None)
        return merge(by_row, H, self.h.size)

    def _moved(self, x: Tensor) -> dict[tuple[int, int], Tensor]:
        """What each entry (row, column) of the kernel reads, ``[C, Ho, Wo, B]``."""
        split = Phases(x, self.h.stride, self.w.stride)
        return {
            (row, column): split.read(down, self.h.outputs, across, self.w.outputs)
            for row, down in enumerate(self.h.taps)
            for column, across in enumerate(self.w.taps)
        }

    @staticmethod
    def _entry(weight: Tensor, row: int, column: int) -> Tensor:
        """One weight a channel, ``[C, 1, 1, 1]``."""
        return weight.narrow(1, row, 1).narrow(2, column, 1).unsqueeze(3)
