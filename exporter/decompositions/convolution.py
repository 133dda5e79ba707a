"""ATen's convolution and its gradients, one- and two-dimensional, with any stride, padding, dilation and groups.

Transposed and three-dimensional convolutions are left as they are.

The rule for which formulation computes a layer:

- every channel by itself (groups = C = O): multiplications of moved inputs;
- few input channels (images): both kernel axes unfolded, since the moved *outputs* of half unfolding would be the
  larger part;
- otherwise half unfolding.
"""
# ruff: noqa: PLR0917 - the signatures are ATen's

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from exporter.decompositions.depthwise import Depthwise
from exporter.decompositions.gather import Steps, pick
from exporter.decompositions.layout import batch_first, batch_last
from exporter.decompositions.unfold import HalfUnfold
from exporter.decompositions.windows import Axis, Phases, Tap, spread

__all__ = ["convolution_decompositions"]

_FEW_CHANNELS = 4
_aten = torch.ops.aten
_LEFT: Any = NotImplemented  # the operation stays as it is


def convolution_decompositions(*, gather: bool) -> dict[Any, Callable[..., Any]]:
    """What to trace in place of ``aten.convolution`` and ``aten.convolution_backward``.

    With ``gather``, inputs are unfolded by ``aten.index_select``.
    """
    return {
        _aten.convolution.default: partial(_convolution, gather),
        _aten.convolution_backward.default: partial(_convolution_backward, gather),
    }


@dataclass(frozen=True)
class _Plane:
    """One layer: tensors ``[C, H, W, B]``, weights ``[O, C/groups, kh, kw]``."""

    h: Axis
    w: Axis
    groups: int
    channels: int
    outputs: int
    gather: bool

    @classmethod
    def of(
        cls,
        gather: bool,
        x: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> "_Plane":
        h, w = (
            Axis(int(x.shape[1 + i]), int(weight.shape[2 + i]), steps, pad, apart)
            for i, (steps, pad, apart) in enumerate(
                zip(_two(stride, 1), _two(padding, 0), _two(dilation, 1), strict=True)
            )
        )
        return cls(h, w, groups, x.shape[0], weight.shape[0], gather)

    @property
    def depthwise(self) -> bool:
        """Whether every channel is convolved by itself."""
        return self.groups != 1 and self.channels == self.groups == self.outputs

    @property
    def images(self) -> bool:
        """Whether both kernel axes are unfolded: the kernel's rows become further channels."""
        return self.groups == 1 and isinstance(self.channels, int) and self.channels <= _FEW_CHANNELS

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.depthwise:
            return Depthwise(self.h, self.w).forward(x, weight.squeeze(1))
        return self._joined(self._half.forward(self._input(x), self._weights(weight)), self.outputs)

    def weight_gradient(self, gradient: Tensor, x: Tensor) -> Tensor:
        if self.depthwise:
            return Depthwise(self.h, self.w).weight_gradient(gradient, x).unsqueeze(1)
        found = self._half.weight_gradient(self._split(gradient), self._input(x))
        if self.images and self.gather:
            return found.reshape([self.outputs, self.channels, self.h.kernel, self.w.kernel])
        if self.images:
            shape = [self.outputs, self.h.kernel, self.channels, self.w.kernel]
            return found.reshape(shape).permute(0, 2, 1, 3)
        return self._joined(found, self.outputs)

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        if self.depthwise:
            return Depthwise(self.h, self.w).input_gradient(gradient, weight.squeeze(1))
        found = self._half.input_gradient(self._split(gradient), self._weights(weight))
        if not self.images:
            return self._joined(found, self.channels)
        if self.gather:
            read = found.reshape([self.channels, self.h.kernel * self.w.kernel, *found.shape[2:]]).unbind(1)
            return spread(read, (self.h, self.w))
        rows = [found.squeeze(0).narrow(0, row * self.channels, self.channels) for row in range(self.h.kernel)]
        return spread(rows, (self.h, Axis(self.w.size, 1)))

    @property
    def _half(self) -> HalfUnfold:
        h = Axis(self.h.outputs, 1) if self.images else self.h
        w = Axis(self.w.outputs, 1) if self.images and self.gather else self.w
        return HalfUnfold(h, w, self.gather)

    def _input(self, x: Tensor) -> Tensor:
        """``[G, C/G, H, W, B]``; of images what each of the kernel's rows reads, ``[1, kh*C, Ho, W, B]``, or what each
        of its entries reads, gathered, ``[1, C*kh*kw, Ho, Wo, B]``.
        """
        if not self.images:
            return self._split(x)
        if self.gather:
            return pick(x, Steps.read(self.h), Steps.read(self.w)).flatten(0, 2).unsqueeze(0)
        split = Phases(x, self.h.stride, 1)
        seen = [split.read(tap, self.h.outputs, Tap(0, 0), self.w.size) for tap in self.h.taps]
        return torch.cat(seen).unsqueeze(0)

    def _weights(self, weight: Tensor) -> Tensor:
        """``[G, O/G, C/G, kh, kw]``; for images ``[1, O, kh*C, 1, kw]`` or ``[1, O, C*kh*kw, 1, 1]``."""
        if not self.images:
            return self._split(weight)
        if self.gather:
            return weight.reshape([1, self.outputs, self.channels * self.h.kernel * self.w.kernel, 1, 1])
        shape = [1, self.outputs, self.h.kernel * self.channels, 1, self.w.kernel]
        return weight.permute(0, 2, 1, 3).reshape(shape)

    def _split(self, x: Tensor) -> Tensor:
        """``[n, ...]`` as ``[G, n/G, ...]``."""
        if self.groups == 1:
            return x.unsqueeze(0)
        return x.reshape([self.groups, x.shape[0] // self.groups, *x.shape[1:]])

    def _joined(self, x: Tensor, count: int) -> Tensor:
        """``[G, n/G, ...]`` as ``[n, ...]``."""
        return x.squeeze(0) if self.groups == 1 else x.reshape([count, *x.shape[2:]])


def _two(values: Sequence[int], neutral: int) -> tuple[int, int]:
    """A setting for H and W; that of one axis is W's."""
    first, second = [neutral, *values] if len(values) == 1 else values
    return first, second


def _planar(x: Tensor) -> Tensor:
    """``[B, C, H, W]`` or ``[B, C, W]`` as ``[C, H, W, B]``."""
    moved = batch_last(x)
    return moved if x.dim() == 4 else moved.unsqueeze(1)


def _like(x: Tensor, like: Tensor) -> Tensor:
    """``[C, H, W, B]`` in the form of ``like``."""
    return batch_first(x if like.dim() == 4 else x.squeeze(1))


def _convolution(
    gather: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    if transposed or x.dim() > 4:
        return _LEFT  # type: ignore[no-any-return]
    moved, kernel = _planar(x), weight if x.dim() == 4 else weight.unsqueeze(2)
    output = _Plane.of(gather, moved, kernel, stride, padding, dilation, groups).forward(moved, kernel)
    if bias is not None:
        output = output + bias.reshape([-1, 1, 1, 1])
    return _like(output, x)


def _convolution_backward(
    gather: bool,
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if transposed or x.dim() > 4:
        return _LEFT  # type: ignore[no-any-return]
    moved, kernel, g = _planar(x), weight if x.dim() == 4 else weight.unsqueeze(2), _planar(gradient)
    plane = _Plane.of(gather, moved, kernel, stride, padding, dilation, groups)
    to_x = _like(plane.input_gradient(g, kernel), x) if output_mask[0] else None
    to_weight = plane.weight_gradient(g, moved).reshape(weight.shape) if output_mask[1] else None
    to_bias = g.sum([1, 2, 3]) if output_mask[2] else None
    return to_x, to_weight, to_bias
