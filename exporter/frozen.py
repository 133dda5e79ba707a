"""Which tensors of a model are read and never trained, and their part of a layout.

Frozen are parameters without ``requires_grad``, the running statistics of a BatchNorm none of whose parameters is
trained, and the other buffers that the forward pass reads.
"""

from collections.abc import Collection, Mapping
from typing import get_args

import msgspec
from torch import Tensor, nn

from edge_fl.core.errors import UnsupportedModelError
from edge_fl.core.layout import Axis, DType, Layout, Segment
from edge_fl.core.layout import Tensor as Spec
from exporter.module_names import within

__all__ = [
    "BATCH_NORMS",
    "STATISTICS",
    "freeze",
    "frozen_names",
    "is_frozen",
    "plain_buffers",
]

STATISTICS = ("running_mean", "running_var")
"""What BatchNorm's running statistics are called."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
"""Layers that have such statistics."""
_COUNT = "num_batches_tracked"
_DTYPES: tuple[str, ...] = get_args(DType)


def is_frozen(module: nn.Module) -> bool:
    """Whether a module has parameters and none of them is trained."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def frozen_names(model: nn.Module) -> frozenset[str]:
    """Parameters that are not trained, and statistics that stay as they are with them."""
    names = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for path, module in model.named_modules():
        if isinstance(module, BATCH_NORMS) and is_frozen(module):
            names |= {within(path, statistic) for statistic in STATISTICS}
    return frozenset(names)


def plain_buffers(model: nn.Module, read: Collection[str]) -> dict[str, Tensor]:
    """Those of the buffers that are ``read`` and no statistics of BatchNorm.

    Raises UnsupportedModelError on one of a dtype that no program takes.
    """
    found = {}
    for name, buffer in model.named_buffers():
        if name in read and name.rpartition(".")[2] not in (*STATISTICS, _COUNT):
            if _dtype(buffer) not in _DTYPES:
                raise UnsupportedModelError(
                    f"The buffer '{name}' is {_dtype(buffer)}: make it one of {', '.join(_DTYPES)} where the model is "
                    "built."
                )
            found[name] = buffer
    return found


def freeze(layout: Layout, names: Collection[str], buffers: Mapping[str, Tensor]) -> Layout:
    """``layout`` with the tensors of these ``names``, and the ``buffers``, among its frozen ones.

    Raises UnsupportedModelError when one has rows of a block's units.
    """
    for tensor in layout.tensors:
        block = next((s.block for axis in tensor.rows for s in axis if s.block is not None), None)
        if tensor.name in names and block is not None:
            raise UnsupportedModelError(
                f"Block '{block}' drops rows of '{tensor.name}', which is frozen: train that tensor, or leave the "
                "block out."
            )
    moved = [msgspec.structs.replace(t, role="frozen") for t in layout.tensors if t.name in names]
    moved += [_described(name, buffer) for name, buffer in buffers.items()]
    kept = tuple(tensor for tensor in layout.tensors if tensor.name not in names)
    return msgspec.structs.replace(layout, tensors=kept, frozen=tuple(moved))


def _described(name: str, buffer: Tensor) -> Spec:
    axes: tuple[Axis, ...] = tuple((Segment(None, inner=length),) for length in buffer.shape)
    found: DType = _dtype(buffer)  # type: ignore[assignment]  # one of them, as plain_buffers says
    return Spec(name, tuple(buffer.shape), axes, axes, dtype=found, role="frozen")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
