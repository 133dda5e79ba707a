"""A model whose every size is read from the tensors it is called with, so that it runs on kept entries alone.

Most layers of torch are so already. Those that hold a size of their own are replaced, in a copy, by modules with
the same tensors under the same names.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_fl.core.bundle import BatchNormPolicy
from edge_fl.core.layout import Tensor as Spec
from exporter.frozen import BATCH_NORMS, is_frozen
from exporter.head_counts import count_heads_by_weights
from exporter.multihead import MultiheadAttention, can_replace
from exporter.own_forward import activates, has_torchs_forward
from exporter.recurrent import replace_recurrent
from exporter.replace_modules import replace_modules
from exporter.transposed import TransposedLinear, is_transposed
from exporter.transposed_convolution import TransposedConvolution, can_transpose
from exporter.written_out import written_out

__all__ = ["adapt", "forget_statistics", "momenta", "new_statistics"]


def adapt(model: nn.Module, *, batch_norm: BatchNormPolicy = "tracked") -> nn.Module:
    """A copy of ``model`` with what it takes its own sizes from replaced.

    Parameters
    ----------
    batch_norm
        Whether BatchNorm layers normalise by the batch in training (``tracked``, ``static``, ``per-width``), or by
        their running statistics (``frozen``), as those always do whose parameters are all frozen.
    """
    model = replace_recurrent(model)
    replace_modules(model, lambda module: _replaced(module, frozen=batch_norm == "frozen"))
    count_heads_by_weights(model)
    return model


def new_statistics(
    model: nn.Module, tensors: Mapping[str, Tensor], width: Tensor | None = None
) -> dict[str, Tensor]:
    """The running statistics after the forward pass just made, as torch's BatchNorm updates them.

    Parameters
    ----------
    tensors
        The ones that the pass was made with, by name.
    width
        ``[W]``, 1 for the row of ``[W, C]`` that changes and 0 for the others, which stay bit for bit; None where
        statistics are ``[C]``.
    """
    new: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.seen:
            for what, values in zip(("mean", "var"), zip(*module.seen, strict=True), strict=True):
                old = moved = tensors[f"{name}.running_{what}"]
                for value in values:
                    moved = moved * (1 - module.momentum) + value * module.momentum
                new[f"{name}.running_{what}"] = (
                    moved if width is None else old + width.reshape(-1, 1) * (moved - old)
                )
    forget_statistics(model)
    return new


def forget_statistics(model: nn.Module) -> None:
    """Forget what passes have left, of which one may have ended in the middle."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.seen = []


def momenta(model: nn.Module, x: Tensor, tracked: Iterable[Spec]) -> dict[str, float]:
    """By how much a step of an adapted ``model`` moves each of the ``tracked`` statistics that it moves at all.

    A layer that the forward pass of ``x`` in training calls several times moves its statistics each time.
    """
    if not (tracked := tuple(tracked)):
        return {}
    layers = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    forget_statistics(model)
    with torch.no_grad(), written_out():
        model(x)
    calls = {name: len(module.seen) for name, module in layers.items()}
    forget_statistics(model)
    found = {}
    for tensor in tracked:
        name = tensor.name.rpartition(".")[0]
        if name in layers and layers[name].momentum and calls[name]:
            momentum = layers[name].momentum
            found[tensor.name] = momentum if calls[name] == 1 else 1 - (1 - momentum) ** calls[name]
    return found


_WHOLE: tuple[tuple[Callable[[nn.Module], bool], Callable[[Any], nn.Module]], ...] = (
    (is_transposed, TransposedLinear),
    (can_replace, MultiheadAttention),
    (can_transpose, TransposedConvolution),
)
"""Layers that have a form of their own elsewhere."""


def _replaced(module: nn.Module, *, frozen: bool) -> nn.Module:
    if isinstance(module, BATCH_NORMS):
        return _BatchNorm(module, frozen=frozen or is_frozen(module))
    if isinstance(module, nn.GroupNorm) and (has_torchs_forward(module) or activates(module)):
        return _GroupNorm(module)
    for fits, in_its_place in _WHOLE:
        if fits(module):
            return in_its_place(module)
    if isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups == module.in_channels > 1:
        return _Depthwise(module) if has_torchs_forward(module) else module
    return module


class _Activated(nn.Module):
    """What timm's classes of normalisation do behind it: they drop, and activate."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if activates(module):
            self.drop, self.act = module.drop, module.act

    def behind(self, normal: Tensor) -> Tensor:
        """``normal``, or what these make of it."""
        for layer in (self.drop, self.act) if activates(self) else ():
            normal = layer(normal)  # type: ignore[operator]  # modules, as it says
        return normal


class _BatchNorm(_Activated):
    """BatchNorm as a function: what torch writes into its buffers is left in ``seen`` instead, call by call."""

    def __init__(self, module: nn.BatchNorm1d | nn.BatchNorm2d, *, frozen: bool) -> None:
        super().__init__(module)
        self.weight, self.bias = module.weight, module.bias
        self.register_buffer("running_mean", module.running_mean)
        self.register_buffer("running_var", module.running_var)
        self.eps, self.momentum = module.eps, module.momentum or 0.0
        self.frozen = frozen
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.train(module.training)

    def forward(self, x: Tensor) -> Tensor:
        if self.frozen or not self.training:
            mean, variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
            return self.behind(functional.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps))
        outputs, mean, scale = torch.ops.aten._native_batch_norm_legit.no_stats(
            x, self.weight, self.bias, True, 0.0, self.eps
        )
        count = math.prod(length for axis, length in enumerate(x.shape) if axis != 1)
        variance = (1 / (scale * scale) - self.eps) * (count / (count - 1))
        self.seen.append((mean.detach(), variance.detach()))
        return self.behind(outputs)


class _GroupNorm(_Activated):
    """GroupNorm with whole groups left out; torch's own would fix how many groups there are in what it traces."""

    def __init__(self, module: nn.GroupNorm) -> None:
        super().__init__(module)
        self.weight, self.bias, self.affine = module.weight, module.bias, module.affine
        self.eps, self.per_group = module.eps, module.num_channels // module.num_groups

    def forward(self, x: Tensor) -> Tensor:
        together = self.per_group * math.prod(x.shape[2:])
        normal = functional.layer_norm(x.reshape(x.shape[0], -1, together), (together,), eps=self.eps).reshape(
            x.shape
        )
        if not self.affine:
            return self.behind(normal)
        shape = (-1, *[1] * (x.dim() - 2))
        return self.behind(normal * self.weight.reshape(shape) + self.bias.reshape(shape))


class _Depthwise(nn.Module):
    """A depthwise convolution with as many groups as channels come in."""

    def __init__(self, module: nn.Conv1d | nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = module.weight, module.bias
        self.strides, self.padding, self.dilation = module.stride, module.padding, module.dilation
        self.convolve = functional.conv1d if isinstance(module, nn.Conv1d) else functional.conv2d

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.convolve(
            x, self.weight, self.bias, self.strides, self.padding, self.dilation, groups=x.shape[1]
        )
        return outputs
