"""Inputs normalised inside the programs: (x - mean) / std, so that devices, scores and ``extract`` all do the same."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.inputs import Input

__all__ = ["measure", "parse_numbers", "with_normalised_input"]

_MEAN, _STD = "input_mean", "input_std"


def with_normalised_input(
    model: nn.Module, mean: Sequence[float], std: Sequence[float], sample: Input, *, axis: int = 0
) -> nn.Module:
    """A copy of ``model`` that takes ``x`` and computes on ``(x - mean) / std``.

    Parameters
    ----------
    mean, std
        One number for all, or one a channel. They are frozen tensors of the bundle.
    axis
        Of a sample's channels: 0 (images ``[C, H, W]``, signals ``[C, T]``, vectors ``[F]``) or -1 (series ``[T, F]``).

    Raises
    ------
    ConfigError
        When they do not fit the sample, or a deviation is not above 0.
    """
    shape = _shape(len(mean), len(std), sample, axis)
    middle, scale = (torch.tensor(numbers, dtype=torch.float64).float() for numbers in (mean, std))
    if not (middle.isfinite().all() and scale.isfinite().all() and (scale > 0).all()):
        raise ConfigError("A mean must be a finite float32, and a standard deviation one above 0.")
    if taken := next((name for name in (_MEAN, _STD) if hasattr(model, name)), None):
        raise ConfigError(
            f"The model has an attribute '{taken}' already: rename it, or leave the normalisation out."
        )
    normalised = copy.deepcopy(model)
    normalised.register_buffer(_MEAN, middle.reshape(shape))
    normalised.register_buffer(_STD, scale.reshape(shape))
    normalised.register_forward_pre_hook(_normalise)
    return normalised


def measure(x: NDArray[Any], sample: Input, *, axis: int = 0) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of samples ``x``, ``[n, ...]`` float32.

    A channel that is always the same has a deviation of 1. Raises DataError where the samples are not the model's.
    """
    if x.shape[1:] != sample.shape or x.dtype != np.dtype(sample.dtype):
        raise DataError(
            f"The data to normalise by has samples of shape {x.shape[1:]} in {x.dtype}, and the model takes "
            f"{sample.shape} in {sample.dtype}."
        )
    if not len(x):
        raise DataError("The data to normalise by holds no samples.")
    channel = _checked(axis, sample) % len(sample.shape) + 1
    others = tuple(other for other in range(x.ndim) if other != channel)
    mean, std = x.mean(axis=others, dtype=np.float64), x.std(axis=others, dtype=np.float64)
    same = x.min(axis=others) == x.max(axis=others)
    return mean.tolist(), np.where(same, 1.0, std).tolist()


def parse_numbers(text: str, option: str) -> list[float]:
    """``0.485,0.456,0.406``; raises ConfigError naming ``option``."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} takes numbers such as 0.485,0.456,0.406, not '{text}'.") from error


def _shape(means: int, deviations: int, sample: Input, axis: int) -> list[int]:
    """What numbers of a channel each are reshaped to, so that they meet its axis."""
    if means != deviations:
        raise ConfigError(f"There are {means} means and {deviations} standard deviations: give as many of both.")
    shape, channels = [1] * len(sample.shape), sample.shape[_checked(axis, sample)]
    if means not in (1, channels):
        raise ConfigError(f"There are {means} means for {channels} channels: give one, or one for each channel.")
    shape[axis] = means
    return shape


def _checked(axis: int, sample: Input) -> int:
    if sample.dtype != "float32" or not sample.shape:
        raise ConfigError("Only samples of float32 numbers can be normalised: leave the normalisation out.")
    if not -len(sample.shape) <= axis < len(sample.shape):
        raise ConfigError(f"A sample of shape {sample.shape} has no axis {axis}.")
    return axis


def _normalise(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    x, *others = inputs
    return ((x - model.get_buffer(_MEAN)) / model.get_buffer(_STD), *others)
