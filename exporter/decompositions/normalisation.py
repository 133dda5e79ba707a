"""Batch and group normalisation and their gradients: sums over whole rows, few passes over the input.

With m and s the mean and the inverse deviation, xn = (x - m) s and means taken over what shares them, the input's
gradient is ``s (h - mean(h) - xn mean(h xn))`` for h = w g.
"""
# ruff: noqa: PLR0917 - the signatures are ATen's

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from exporter.decompositions.layout import batch_first, batch_last

__all__ = ["normalisation_decompositions"]

_aten = torch.ops.aten
_Triple = tuple[Tensor | None, Tensor | None, Tensor | None]


def normalisation_decompositions() -> dict[Any, Callable[..., Any]]:
    """What to trace in place of ATen's batch and group normalisation."""
    return {
        _aten._native_batch_norm_legit.no_stats: _batch_norm,
        _aten._native_batch_norm_legit_no_training.default: _batch_norm_fixed,
        _aten.native_batch_norm_backward.default: _batch_norm_backward,
        _aten.native_group_norm.default: _group_norm,
        _aten.native_group_norm_backward.default: _group_norm_backward,
    }


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and each channel's mean and inverse deviation over this batch."""
    moved = batch_last(x)
    others = list(range(1, moved.dim()))
    mean = moved.mean(others, keepdim=True)
    centred = moved - mean
    inverse = torch.rsqrt((centred * centred).mean(others, keepdim=True) + eps)
    factor = inverse if weight is None else inverse * _channels(weight, moved)
    output = centred * factor
    if bias is not None:
        output = output + _channels(bias, moved)
    return batch_first(output), mean.reshape([-1]), inverse.reshape([-1])


def _batch_norm_fixed(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output under given statistics: one multiplication and one addition."""
    inverse = torch.rsqrt(running_var + eps)
    factor = inverse if weight is None else inverse * weight
    offset = -running_mean * factor if bias is None else bias - running_mean * factor
    moved = batch_last(x)
    output = batch_first(moved * _channels(factor, moved) + _channels(offset, moved))
    return output, x.new_zeros([0]), x.new_zeros([0])


def _batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> _Triple:
    moved, g = batch_last(x), batch_last(gradient)
    others = list(range(1, moved.dim()))
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, inverse = _channels(save_mean, moved), _channels(save_invstd, moved)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, inverse = _channels(running_mean, moved), torch.rsqrt(_channels(running_var, moved) + eps)
    # The same node as in the forward pass, so that it is computed once.
    centred = moved - mean
    to_bias = g.sum(others, keepdim=True)
    to_weight = (g * centred).sum(others, keepdim=True) * inverse
    factor = inverse if weight is None else inverse * _channels(weight, moved)
    to_x = g * factor
    if train:
        count = math.prod(moved.shape[1:])
        to_x = to_x - centred * (to_weight * factor * inverse / count) - to_bias * factor / count
    return (
        batch_first(to_x) if output_mask[0] else None,
        to_weight.reshape([-1]) if output_mask[1] else None,
        to_bias.reshape([-1]) if output_mask[2] else None,
    )


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: int,
    channels: int,
    places: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and each group's mean and inverse deviation ``[B, group]``."""
    moved = batch_last(x)
    grouped = moved.reshape([group, channels // group * places, samples])
    mean = grouped.mean(1, keepdim=True)
    centred = grouped - mean
    inverse = torch.rsqrt((centred * centred).mean(1, keepdim=True) + eps)
    output = (centred * inverse).reshape(moved.shape)
    if weight is not None:
        output = output * _channels(weight, moved)
    if bias is not None:
        output = output + _channels(bias, moved)
    return batch_first(output), mean.squeeze(1).transpose(0, 1), inverse.squeeze(1).transpose(0, 1)


def _group_norm_backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    samples: int,
    channels: int,
    places: int,
    group: int,
    output_mask: Sequence[bool],
) -> _Triple:
    moved, g = batch_last(x), batch_last(gradient)
    grouped = [group, channels // group * places, samples]
    inverse = rstd.transpose(0, 1).unsqueeze(1)
    normal = (moved.reshape(grouped) - mean.transpose(0, 1).unsqueeze(1)) * inverse
    others = list(range(1, moved.dim()))
    h = (g if weight is None else g * _channels(weight, moved)).reshape(grouped)
    to_x = (h - h.mean(1, keepdim=True) - normal * (h * normal).mean(1, keepdim=True)) * inverse
    return (
        batch_first(to_x.reshape(moved.shape)) if output_mask[0] else None,
        (g * normal.reshape(moved.shape)).sum(others) if output_mask[1] else None,
        g.sum(others) if output_mask[2] else None,
    )


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """One value a channel, ``[C]``, against ``[C, ..., B]``."""
    return values.reshape([-1, *[1] * (like.dim() - 1)])
