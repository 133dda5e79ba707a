"""Recurrent modules as single operations, for following a model's structure: torch-pruning cannot look into a loop.

A stand-in gives outputs of the right shapes and of no meaning; what its units own is declared
(:mod:`exporter.recurrent.axes`).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

from exporter.recurrent import RecurrentAxes, recurrent_axes, replace_recurrent
from exporter.recurrent.layers import LstmLayers, RecurrentLayers

__all__ = ["PRUNERS", "StandIn", "with_stand_ins"]


class StandIn(nn.Module):
    """Layers of a recurrent module as one operation.

    ``axes`` are the units of every layer; ``readers`` are the weights whose columns read the module's input.
    """

    def __init__(self, module: RecurrentLayers, name: str) -> None:
        super().__init__()
        self.axes: tuple[RecurrentAxes, ...] = tuple(recurrent_axes(module, name))
        self.readers = tuple(f"{name}.{p}" if name else p for p, _ in module.named_parameters() if "ih_l0" in p)
        self.readers = tuple(reader for reader in self.readers if "weight" in reader)
        self.inputs = module.get_parameter("weight_ih_l0").shape[1]
        self.outputs = sum(axes.size for axes in self.axes if axes.outputs is not None)
        self.layers = len(self.axes)
        self.anchor = nn.Parameter(torch.zeros(()))  # the module may come first, where nothing else has a gradient
        self.batch_first, self.pair = module.batch_first, isinstance(module, LstmLayers)

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Outputs and last states of the shapes that torch gives."""
        del hx
        outputs: Tensor = _Operation.apply(x, self.anchor, self.outputs)  # type: ignore[no-untyped-call]
        time = 1 if self.batch_first and x.dim() == 3 else 0
        last = outputs.select(time, -1)[..., : self.axes[-1].size].unsqueeze(0)
        last = last.expand(self.layers, *last.shape[1:])
        return outputs, (last, last) if self.pair else last


class _Operation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, outputs: int) -> Tensor:
        """``[..., outputs]`` for ``[..., features]``; integers never come here."""
        return x.new_zeros(*x.shape[:-1], outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Never called: the structure is read from the graph's edges."""
        raise NotImplementedError


class _Pruner(tp.BasePruningFunc):  # type: ignore[misc]
    """What torch-pruning asks of a layer; nothing is ever pruned."""

    TARGET_MODULES = StandIn

    def prune_out_channels(self, layer: StandIn, idxs: Sequence[int]) -> nn.Module:
        return layer

    def prune_in_channels(self, layer: StandIn, idxs: Sequence[int]) -> nn.Module:
        return layer

    def get_out_channels(self, layer: StandIn) -> int:
        return layer.outputs

    def get_in_channels(self, layer: StandIn) -> int:
        return layer.inputs


PRUNERS = {StandIn: _Pruner()}
"""For torch-pruning's ``customized_pruners``."""


def with_stand_ins(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with stand-ins in place of its recurrent modules (cells excepted)."""
    model = replace_recurrent(model)
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, RecurrentLayers):
                setattr(parent, name, StandIn(child, f"{parent_name}.{name}" if parent_name else name))
    return model
