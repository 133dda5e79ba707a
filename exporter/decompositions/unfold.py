"""Convolution by half unfolding (docs/performance.md): the kernel's columns are unfolded, its rows are not.

With x ``[G, C, H, W, B]`` (G groups) and weights ``[G, O, C, kh, kw]``:

- V ``[G, kw*C, H*Wo*B]`` holds x once for each kernel column, moved along W;
- one product ``[kh*O, kw*C] V`` gives what every kernel row sees; moved along H they add up to the output;
- E ``[G, kh*O, H*Wo*B]`` holds the output's gradient once for each kernel row, moved along H;
- the weights' gradient is ``E V^T``, the input's ``[kw*C, kh*O] E``, moved along W and added up.

No product is larger than the convolution's own, and kw + kh copies replace kw * kh. A stride along H gives one V, one
E and one product of each kind for each phase of the rows.

Where the runtime gathers quickly, V and E are picked in one operation each. The kernel's axis then comes after the
channels' (``C*kw``, ``O*kh``), as that is how a gathered tensor lies.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from exporter.decompositions.gather import Steps, pick
from exporter.decompositions.windows import Axis, Cut, H, Phases, Tap, W, merge, total, window

__all__ = ["HalfUnfold"]


@dataclass(frozen=True)
class HalfUnfold:
    """A two-dimensional grouped convolution with the kernel ``h`` x ``w``, ``gathered`` or cut and joined."""

    h: Axis
    w: Axis
    gathered: bool

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The output ``[G, O, Ho, Wo, B]``."""
        groups, outputs = weight.shape[:2]
        terms = []
        for rows, unfolded in zip(self._kernel_rows.values(), self._columns(x), strict=True):
            product = torch.bmm(self._matrix(weight, rows), unfolded)
            if self.gathered and self.h.stride == 1 and not self.h.padding:
                return self._moved_within(product, groups * outputs).reshape(
                    [groups, outputs, self.h.outputs, self.w.outputs, x.shape[-1]]
                )
            shape = [groups, *self._apart(len(rows), outputs), self.h.rows, self.w.outputs, x.shape[-1]]
            seen = product.reshape(shape)
            for index, row in enumerate(rows):
                moved = Cut(H, self.h.taps[row].shift, self.h.outputs)
                terms.append(window(seen, Cut(self._taps, index, 1), moved))
        return total(terms).squeeze(self._taps)

    def _moved_within(self, product: Tensor, channels: int) -> Tensor:
        """What all kernel rows see, moved and added up, where no row lies outside."""
        taps, rows = self.h.kernel, self.h.rows
        if taps == 1:
            return product
        moved = [Steps(index * rows + tap.shift, 1, self.h.outputs) for index, tap in enumerate(self.h.taps)]
        return pick(product.reshape([channels, taps * rows, 1, -1]), moved, [Steps(0, 1, 1)]).sum(1)

    def weight_gradient(self, gradient: Tensor, x: Tensor) -> Tensor:
        """The gradient ``[G, O, C, kh, kw]`` of the weights, from the output's."""
        groups, outputs = gradient.shape[:2]
        channels = x.shape[1]
        parts: dict[int, Tensor] = {}
        for rows, columns, moved in zip(
            self._kernel_rows.values(), self._columns(x), self._rows(gradient), strict=True
        ):
            product = torch.bmm(moved, columns.transpose(1, 2))
            shape = [groups, *self._apart(len(rows), outputs), *self._apart(self.w.kernel, channels)]
            shaped = product.reshape(shape)
            parts.update((row, shaped.narrow(self._taps, index, 1)) for index, row in enumerate(rows))
        whole = shaped if len(self._kernel_rows) == 1 else torch.cat([parts[i] for i in sorted(parts)], self._taps)
        return whole.permute(0, 1, 3, 2, 4) if self.gathered else whole.permute(0, 2, 4, 1, 3)

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """The gradient ``[G, C, H, W, B]`` of the input, from the output's."""
        groups, _, channels = weight.shape[:3]
        by_row: list[Tensor | None] = [None] * self.h.stride
        for (phase, rows), moved in zip(self._kernel_rows.items(), self._rows(gradient), strict=True):
            product = torch.bmm(self._matrix(weight, rows).transpose(1, 2), moved)
            unfolded = self._apart(self.w.kernel, channels)
            seen = product.reshape([groups, *unfolded, self.h.rows, self.w.outputs, gradient.shape[-1]])
            by_column: dict[int, list[Tensor]] = defaultdict(list)
            for column, tap in enumerate(self.w.taps):
                moved_back = Cut(W, -tap.shift, self.w.rows)
                by_column[tap.phase].append(window(seen, Cut(self._taps, column, 1), moved_back))
            columns = range(self.w.stride)
            parts = [total(by_column[p]).squeeze(self._taps) if p in by_column else None for p in columns]
            by_row[phase] = merge(parts, W, self.w.size)
        return merge(by_row, H, self.h.size)

    @property
    def _taps(self) -> int:
        """The kernel's axis in what is unfolded."""
        return 2 if self.gathered else 1

    def _apart(self, taps: int, channels: int) -> tuple[int, int]:
        """The axes of the kernel and of the channels, in their order."""
        return (channels, taps) if self.gathered else (taps, channels)

    @property
    def _kernel_rows(self) -> dict[int, list[int]]:
        """The kernel rows that read each phase of the input's rows."""
        found: dict[int, list[int]] = defaultdict(list)
        for row, tap in enumerate(self.h.taps):
            found[tap.phase].append(row)
        return found

    def _columns(self, x: Tensor) -> list[Tensor]:
        """V, for each phase of the rows that is read."""
        if self.gathered:
            rows = (Steps(phase, self.h.stride, self.h.rows) for phase in self._kernel_rows)
            return [_picked(x, [phase], Steps.read(self.w)) for phase in rows]
        split = Phases(x, self.h.stride, self.w.stride)
        return [
            _matrix_of([split.read(Tap(phase, 0), self.h.rows, tap, self.w.outputs) for tap in self.w.taps])
            for phase in self._kernel_rows
        ]

    def _rows(self, gradient: Tensor) -> list[Tensor]:
        """E, for each phase of the rows that is read."""
        taps = self.h.taps
        if self.gathered:
            everything = [Steps(0, 1, self.w.outputs)]
            return [
                _picked(gradient, [Steps(-taps[row].shift, 1, self.h.rows) for row in rows], everything)
                for rows in self._kernel_rows.values()
            ]
        return [
            _matrix_of([window(gradient, Cut(H, -taps[row].shift, self.h.rows)) for row in rows])
            for rows in self._kernel_rows.values()
        ]

    def _matrix(self, weight: Tensor, rows: list[int]) -> Tensor:
        """``[G, rows*O, kw*C]``: the weights of some kernel rows."""
        groups, outputs, channels = weight.shape[:3]
        ordered = weight.permute(0, 1, 3, 2, 4) if self.gathered else weight.permute(0, 3, 1, 4, 2)
        if len(rows) < self.h.kernel:
            ordered = torch.cat([ordered.narrow(self._taps, row, 1) for row in rows], self._taps)
        return ordered.reshape([groups, len(rows) * outputs, self.w.kernel * channels])


def _matrix_of(moved: list[Tensor]) -> Tensor:
    """Tensors ``[G, C, H, W, B]`` below one another, ``[G, n*C, H*W*B]``."""
    joined = moved[0] if len(moved) == 1 else torch.cat(moved, 1)
    groups, channels, height, width, batch = joined.shape
    return joined.reshape([groups, channels, height * width * batch])


def _picked(x: Tensor, down: list[Steps], across: list[Steps]) -> Tensor:
    """For each channel of ``x`` ``[G, C, H, W, B]`` every picked grid, ``[G, C*n, h*w*B]``."""
    groups, channels, height, width, batch = x.shape
    count = len(down) * len(across)
    shape = [groups, channels * count, down[0].count * across[0].count * batch]
    if len(across) == 1 and across[0] == Steps(0, 1, int(width)):  # whole rows at once
        if len(down) == 1 and down[0] == Steps(0, 1, int(height)):
            return x.reshape(shape)
        across, width, batch = [Steps(0, 1, 1)], 1, width * batch
    return pick(x.reshape([groups * channels, height, width, batch]), down, across).reshape(shape)
