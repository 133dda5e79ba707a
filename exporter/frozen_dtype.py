"""What frozen matrices are stored as: the model is rounded to that first, and programs widen what they read.

In int8 each row is whole numbers of -127 to 127 times a scale. The scales are a frozen tensor, ``NAME/int8_scale``.
"""

import copy
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_fl.core.errors import ConfigError
from edge_fl.core.frozen import INT8_SCALE
from edge_fl.core.layout import Layout, Segment
from edge_fl.core.layout import Tensor as Spec

__all__ = ["FrozenDType", "arrays_of", "round_frozen", "scaled_tensor", "store_frozen", "widened"]

FrozenDType = Literal["float32", "float16", "int8"]

_MOST = 127
_SCALE_BITS = 16  # with the 7 of a whole number no more than float32 has, so that their product is exact
_LEAST_SCALE = 2.0**-100


def round_frozen(model: nn.Module, dtype: FrozenDType) -> nn.Module:
    """A copy of ``model`` whose frozen matrices have numbers that ``dtype`` holds, still as float32.

    Raises
    ------
    ConfigError
        When one has a number that is too large, or there is none; on another ``dtype``.
    """
    if dtype not in get_args(FrozenDType):
        raise ConfigError(f"Frozen tensors are stored as float32, float16 or int8, not as '{dtype}'.")
    if dtype == "float32":
        return model
    rounded = copy.deepcopy(model)
    matrices = {name: parameter for name, parameter in rounded.named_parameters() if _is_matrix(parameter)}
    if not matrices:
        raise ConfigError(
            f"No matrix of the model is frozen, so none can be stored as {dtype}: say with --train what is trained, "
            "or leave --frozen-dtype out."
        )
    for name, parameter in matrices.items():
        if not parameter.isfinite().all():
            continue  # whoever reads the model says so
        parameter.data = _in_half(name, parameter.data) if dtype == "float16" else _in_int8(parameter.data)
    return rounded


def store_frozen(model: nn.Module, layout: Layout, dtype: FrozenDType) -> Layout:
    """``layout`` with these matrices as ``dtype``, and the scales of those in int8 at the end."""
    if dtype == "float32":
        return layout
    names = {name for name, parameter in model.named_parameters() if _is_matrix(parameter)}
    stored = [msgspec.structs.replace(t, dtype=dtype) if t.name in names else t for t in layout.frozen]
    scales = [_scale_of(tensor) for tensor in stored if tensor.name in names] if dtype == "int8" else []
    return msgspec.structs.replace(layout, frozen=(*stored, *scales))


def arrays_of(model: nn.Module, layout: Layout) -> dict[str, NDArray[Any]]:
    """The frozen tensors of ``layout`` by name, as ``model`` has them, of the layout's dtypes."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found: dict[str, NDArray[Any]] = {}
    for tensor in layout.frozen:
        if tensor.name in held:
            found[tensor.name] = held[tensor.name].detach().cpu().numpy()
    for tensor in layout.frozen:
        if tensor.name not in held:
            weight = found[scaled_tensor(tensor.name)]
            found[tensor.name] = _scales(weight)
            found[scaled_tensor(tensor.name)] = np.rint(weight / found[tensor.name])
    return {tensor.name: found[tensor.name].astype(tensor.dtype, copy=False) for tensor in layout.frozen}


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as float32, without the scales of those in int8; others are as they were."""
    found = {}
    for name, tensor in tensors.items():
        scale = tensors.get(f"{name}{INT8_SCALE}")
        if scale is not None:
            found[name] = tensor.float() * scale
        elif scaled_tensor(name) == name or scaled_tensor(name) not in tensors:
            found[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
    return found


def scaled_tensor(name: str) -> str:
    """The name of the tensor that a scale of that ``name`` is of; of another tensor, its own."""
    return name.removesuffix(INT8_SCALE)


def _is_matrix(parameter: Tensor) -> bool:
    """Whether it is frozen, and large enough to matter: factors, biases and statistics stay as they are."""
    floats = parameter.is_floating_point() and parameter.numel() > 0
    return floats and parameter.ndim > 1 and not parameter.requires_grad


def _in_half(name: str, weight: Tensor) -> Tensor:
    half = weight.half().float()
    if not half.isfinite().all():
        raise ConfigError(f"'{name}' has numbers beyond float16's 65,504: take int8, or leave --frozen-dtype out.")
    return half


def _in_int8(weight: Tensor) -> Tensor:
    array = weight.cpu().numpy()
    scales = _scales(array)
    return torch.from_numpy((np.rint(array / scales) * scales).astype(np.float32))


def _scales(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """``[rows, 1, ...]``: the largest number of each row over 127, rounded up. What they round has the same scales."""
    axes = tuple(range(1, weight.ndim))
    largest = np.maximum(weight.max(axis=axes, keepdims=True), -weight.min(axis=axes, keepdims=True))
    part, exponent = np.frexp(np.maximum(largest.astype(np.float64) / _MOST, _LEAST_SCALE))
    scales: NDArray[np.float64] = np.ldexp(np.ceil(part * 2.0**_SCALE_BITS) / 2.0**_SCALE_BITS, exponent)
    return scales.astype(np.float32)


def _scale_of(tensor: Spec) -> Spec:
    alone = ((Segment(None),),) * (len(tensor.shape) - 1)
    axes, free = (tensor.units[0], *alone), (tensor.rows[0], *alone)
    return Spec(f"{tensor.name}{INT8_SCALE}", (tensor.shape[0], *[1] * len(alone)), free, axes, role="frozen")
