"""Convolution by half unfolding (docs/performance.md): the kernel's columns are unfolded, its rows are not.

With x ``[G, C, H, W, B]`` (G groups) and weights ``[G, O, C, kh, kw]``:

- V ``[G, kw*C, H*Wo*B]`` holds x once for each kernel column, moved along W;
- one product ``[kh*O, kw*C] V`` gives what every kernel row sees; moved along H they add up to the output;
- E ``[G, kh*O, H*Wo*B]`` holds the output's gradient once for each kernel row, moved along H;
- the weights' gradient is ``E V^T``, the input's ``[kw*C, kh*O] E``, moved along W and added up.

No product is larger than the convolution's own, and kw + kh copies replace kw * kh. A stride along H gives one V, one
E and one product of each kind for each phase of the rows.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from exporter.decompositions.windows import Axis, Cut, H, Phases, Tap, W, merge, total, window

__all__ = ["HalfUnfold"]


@dataclass(frozen=True)
class HalfUnfold:
    """A two-dimensional grouped convolution with the kernel ``h`` x ``w``."""

    h: Axis
    w: Axis

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The output ``[G, O, Ho, Wo, B]``."""
        groups, outputs = weight.shape[:2]
        terms = []
        for rows, unfolded in zip(self._kernel_rows.values(), self._columns(x), strict=True):
            product = torch.bmm(self._matrix(weight, rows), unfolded)
            shape = [groups, len(rows), outputs, self.h.rows, self.w.outputs, x.shape[-1]]
            seen = product.reshape(shape)
            for index, row in enumerate(rows):
                moved = Cut(H, self.h.taps[row].shift, self.h.outputs)
                terms.append(window(seen, Cut(1, index, 1), moved).squeeze(1))
        return total(terms)

    def weight_gradient(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient ``[G, O, C, kh, kw]`` of the weights, from the output's."""
        groups, outputs = gradient.shape[:2]
        channels = x.shape[1]
        parts: dict[int, Tensor] = {}
        for rows, columns, moved in zip(
            self._kernel_rows.values(), self._columns(x), self._rows(gradient), strict=True
        ):
            product = torch.bmm(moved, columns.transpose(1, 2))
            shaped = product.reshape([groups, len(rows), outputs, self.w.kernel, channels])
            if len(self._kernel_rows) == 1:
                return shaped.permute(0, 2, 4, 1, 3)
            parts.update((row, shaped.narrow(1, index, 1)) for index, row in enumerate(rows))
        return torch.cat([parts[row] for row in range(self.h.kernel)], 1).permute(0, 2, 4, 1, 3)

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """The gradient ``[G, C, H, W, B]`` of the input, from the output's."""
        groups, _, channels = weight.shape[:3]
        by_row: list[Tensor | None] = [None] * self.h.stride
        for (phase, rows), moved in zip(self._kernel_rows.items(), self._rows(gradient), strict=True):
            product = torch.bmm(self._matrix(weight, rows).transpose(1, 2), moved)
            shape = [groups, self.w.kernel, channels, self.h.rows, self.w.outputs, gradient.shape[-1]]
            seen = product.reshape(shape)
            by_column: dict[int, list[Tensor]] = defaultdict(list)
            for column, tap in enumerate(self.w.taps):
                moved_back = Cut(W, -tap.shift, self.w.rows)
                by_column[tap.phase].append(window(seen, Cut(1, column, 1), moved_back).squeeze(1))
            parts = [total(by_column[p]) if p in by_column else None for p in range(self.w.stride)]
            by_row[phase] = merge(parts, W, self.w.size)
        return merge(by_row, H, self.h.size)

    @property
    def _kernel_rows(self) -> dict[int, list[int]]:
        """The kernel rows that read each phase of the input's rows."""
        found: dict[int, list[int]] = defaultdict(list)
        for row, tap in enumerate(self.h.taps):
            found[tap.phase].append(row)
        return found

    def _columns(self, x: Tensor) -> list[Tensor]:
        """V, for each phase of the rows that is read."""
        split = Phases(x, self.h.stride, self.w.stride)
        return [
            _matrix_of([split.read(Tap(phase, 0), self.h.rows, tap, self.w.outputs) for tap in self.w.taps])
            for phase in self._kernel_rows
        ]

    def _rows(self, gradient: Tensor) -> list[Tensor]:
        """E, for each phase of the rows that is read."""
        taps = self.h.taps
        return [
            _matrix_of([window(gradient, Cut(H, -taps[row].shift, self.h.rows)) for row in rows])
            for rows in self._kernel_rows.values()
        ]

    def _matrix(self, weight: Tensor, rows: list[int]) -> Tensor:
        """``[G, rows*O, kw*C]``: the weights of some kernel rows."""
        groups, outputs, channels = weight.shape[:3]
        ordered = weight.permute(0, 3, 1, 4, 2)
        if len(rows) < self.h.kernel:
            ordered = torch.cat([ordered.narrow(1, row, 1) for row in rows], 1)
        return ordered.reshape([groups, len(rows) * outputs, self.w.kernel * channels])


def _matrix_of(moved: list[Tensor]) -> Tensor:
    """Tensors ``[G, C, H, W, B]`` below one another, ``[G, n*C, H*W*B]``."""
    joined = moved[0] if len(moved) == 1 else torch.cat(moved, 1)
    groups, channels, height, width, batch = joined.shape
    return joined.reshape([groups, channels, height * width * batch])
