"""The model as a function of its kept entries, as every program needs it."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import cast

from torch import Tensor, nn

from exporter.adapt import forget_statistics, new_statistics
from exporter.dropout_calls import GivenMasks
from exporter.own_outputs import Outputs
from exporter.recurrent.cells import RecurrentCell
from exporter.recurrent.layers import RecurrentLayers
from exporter.recurrent.scaling import ScaledUnits, dropping
from exporter.source import Source, Traceable, batch_ports, frozen_ports, tensor_ports

__all__ = [
    "WHOLE_WEIGHT",
    "build_evaluation",
    "mean_of",
    "scaled_where_smaller",
    "training_forward",
    "training_loss",
]

WHOLE_WEIGHT = "whole_weight"
"""The input that a pass over a micro-batch has besides: the sum of the whole batch's sample weights, 0-d."""

_where_smaller: ContextVar[bool] = ContextVar("scaled where smaller", default=False)


@contextmanager
def scaled_where_smaller() -> Iterator[None]:
    """In everything traced inside, scale a dense layer's weights in place of its outputs, if they are fewer.

    The results differ by rounding alone. Sizes must be static.
    """
    token = _where_smaller.set(True)
    try:
        yield
    finally:
        _where_smaller.reset(token)


def training_forward(
    source: Source, tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor]
) -> tuple[Outputs, dict[str, Tensor]]:
    """The outputs under kept entries for the ``x`` of a step's ``inputs``, and the tracked statistics anew.

    The outputs of every module whose units can be dropped are multiplied by ``scale``.
    """
    inner = {name: tensors[name] * inputs["scale"] for name in source.inner}
    forget_statistics(source.module)
    with (
        _scaled(source, inputs["scale"]),
        nullcontext() if source.dropout is None else GivenMasks(source.dropout, inputs),
    ):
        outputs = source.outputs(source.module, {**tensors, **inner}, inputs["x"])
    # Also those that nobody wants: none may stay in the module.
    statistics = new_statistics(source.module, tensors, inputs.get("width"))
    return outputs, statistics if source.tracked else {}


@contextmanager
def _scaled(source: Source, scale: Tensor) -> Iterator[None]:
    """Modules multiply what they give by ``scale`` while this is active."""

    def multiply(module: nn.Module, given: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        return _scaled_layer(module, given[0], scale) if _is_large(outputs, module, given) else outputs * scale

    with ExitStack() as hooks:
        for name in source.scaled:
            module = source.module.get_submodule(name)
            if isinstance(module, RecurrentLayers | RecurrentCell):
                units = _recurrent_units(source, name, scale)
                before = module.register_forward_pre_hook(
                    lambda _, *given, u=units: u.out_of(*given), with_kwargs=True
                )
                hooks.callback(before.remove)
                hooks.callback(module.register_forward_hook(lambda _, __, given, u=units: u.on(given)).remove)
            else:
                hooks.callback(module.register_forward_hook(multiply).remove)
        yield


def _recurrent_units(source: Source, name: str, scale: Tensor) -> ScaledUnits:
    module = source.module.get_submodule(name)
    both_ways = isinstance(module, RecurrentLayers) and module.bidirectional
    cell = isinstance(module, RecurrentCell)
    return ScaledUnits(scale, dropping(source.module, name, source.layout), both_ways, cell)


def _is_large(outputs: Tensor, module: nn.Module, given: tuple[Tensor, ...]) -> bool:
    """Whether a plain call of a dense layer gave more outputs than it has weights, where that matters."""
    if not _where_smaller.get() or type(module) is not nn.Linear:
        return False
    plain = len(given) == 1 and len(module._forward_hooks) == 1  # another hook may have changed the outputs
    return plain and outputs.numel() > module.weight.numel()


def _scaled_layer(layer: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    weight, bias = cast(Tensor, layer.weight), cast(Tensor | None, layer.bias)
    return nn.functional.linear(x, weight * scale, None if bias is None else bias * scale)


def training_loss(
    source: Source, tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum(w l) / sum(w) over the batch of a step's ``inputs``, and the tracked statistics anew."""
    outputs, statistics = training_forward(source, tensors, inputs)
    losses = source.loss.per_sample(outputs, inputs["y"], *(inputs[name] for name in source.loss.inputs))
    return mean_of(losses, inputs), statistics


def mean_of(losses: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The weighted mean of ``losses`` ``[B]`` over a step's batch; of a micro-batch, its part of that of the whole."""
    return weighted_mean(losses, inputs["sample_weight"], inputs.get(WHOLE_WEIGHT))


def weighted_mean(losses: Tensor, sample_weight: Tensor, whole: Tensor | None = None) -> Tensor:
    """sum(w l) / sum(w), both ``[B]``, or over the ``whole`` of weights: a sample of weight 0 is padding."""
    return (losses * sample_weight).sum() / (sample_weight.sum() if whole is None else whole)


def build_evaluation(source: Source) -> Traceable:
    """Build ``(tensors..., frozen..., x, y, sample_weight) -> (loss, outputs [B, ...])`` of the full model.

    ``width`` comes last where BatchNorm has statistics for each, and says which it normalises by.
    """
    names = [tensor.name for tensor in (*source.layout.tensors, *source.frozen)]
    module = copy.deepcopy(source.module).eval()
    # What a loss takes besides the targets is about a client's training, not about the model's quality.
    free = source.loss.inputs

    def evaluate(*inputs: Tensor) -> tuple[Tensor, ...]:
        x, y, sample_weight, *width = inputs[len(names) :]
        tensors = _at_width(source, dict(zip(names, inputs, strict=False)), *width)
        outputs = source.outputs(module, tensors, x)
        ones = [sample_weight.new_ones(source.classes) for _ in free]
        loss = weighted_mean(source.loss.per_sample(outputs, y, *ones), sample_weight)
        return loss, source.predictions(outputs)

    ports = (*tensor_ports(source.layout), *frozen_ports(source), *batch_ports(source))
    return Traceable(source, "eval", evaluate, ports, ("loss", "outputs"))


def _at_width(source: Source, tensors: dict[str, Tensor], width: Tensor | None = None) -> dict[str, Tensor]:
    """The tensors with the one row of each statistic that ``width`` ``[W]`` is 1 at."""
    if width is None:
        return tensors
    rows = {t.name: (tensors[t.name] * width.reshape(-1, 1)).sum(0) for t in source.layout.tensors if t.per_width}
    return {**tensors, **rows}
