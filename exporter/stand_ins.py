"""Modules as single operations, for following a model's structure: torch-pruning cannot look into loops or heads.

A stand-in gives outputs of the right shapes and of no meaning; what its units own is declared
(:mod:`exporter.recurrent.axes`, :mod:`exporter.multihead`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

from exporter.module_names import within
from exporter.multihead import MultiheadAttention, attention_axes, can_replace
from exporter.recurrent import recurrent_axes, replace_recurrent
from exporter.recurrent.layers import LstmLayers, RecurrentLayers
from exporter.recurrent.states import LayerStates
from exporter.transposed import TransposedLinear, is_transposed, transposed_axes
from exporter.unit_axes import UnitAxes

__all__ = ["PRUNERS", "StandIn", "with_stand_ins"]


class StandIn(nn.Module):
    """A module as one operation.

    Parameters
    ----------
    axes
        The units of every layer in it.
    layer
        What the module whose outputs the units are is called in the model.
    readers
        The weights whose columns read the module's input.
    inputs
        Features of that input.
    reading
        The axis of those columns.
    recurrent
        Whether units are read in the next time step, too.
    """

    def __init__(
        self,
        axes: Sequence[UnitAxes],
        *,
        layer: str,
        readers: Sequence[str],
        inputs: int,
        recurrent: bool = False,
        reading: int = 1,
    ) -> None:
        super().__init__()
        self.layer, self.reading = layer, reading
        self.axes, self.readers, self.inputs, self.recurrent = tuple(axes), tuple(readers), inputs, recurrent
        self.outputs = sum(each.size for each in self.axes if each.outputs is not None)
        self.anchor = nn.Parameter(torch.zeros(()))  # the module may come first, where nothing else has a gradient


class _Direction(StandIn):
    """One layer of a recurrent module, in one direction."""

    def __init__(self, module: RecurrentLayers, name: str, axes: UnitAxes, suffix: str) -> None:
        weight = f"weight_ih{suffix}"
        inputs = module.get_parameter(weight).shape[1]
        axes = replace(axes, outputs=slice(0, axes.size))  # of its own outputs, not of the module's
        super().__init__([axes], layer=name, readers=[within(name, weight)], inputs=inputs, recurrent=True)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of their shape."""
        outputs: Tensor = _Operation.apply(x, self.anchor, self.outputs)  # type: ignore[no-untyped-call]
        return outputs


class _Recurrence(nn.Module):
    """The layers and directions of a recurrent module, each an operation that others may read by itself."""

    def __init__(self, module: RecurrentLayers, name: str) -> None:
        super().__init__()
        parts = zip(recurrent_axes(module, name), module.suffixes(), strict=True)
        self.parts = nn.ModuleList([_Direction(module, name, axes, suffix) for axes, suffix in parts])
        self.directions = len(self.parts) // module.num_layers
        self.batch_first, self.pair = module.batch_first, isinstance(module, LstmLayers)

    def flatten_parameters(self) -> None:
        """As torch's, which models call for cuDNN: nothing is done."""

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Outputs and last states of the shapes that torch gives."""
        del hx
        time, states = (1 if self.batch_first and x.dim() == 3 else 0), list[Tensor]()
        for bottom in range(0, len(self.parts), self.directions):
            given = [part(x) for part in self.parts[bottom : bottom + self.directions]]
            states += [outputs.select(time, -1) for outputs in given]
            x = torch.cat(given, -1) if len(given) > 1 else given[0]
        last = LayerStates(states)
        return x, (last, last) if self.pair else last


class _Attention(StandIn):
    def __init__(self, module: MultiheadAttention, name: str) -> None:
        super().__init__(
            attention_axes(module, name),
            layer=name,
            readers=[within(name, p) for p, _ in module.named_parameters() if "proj_weight" in p],
            inputs=module.out_proj.weight.shape[0],
        )
        self.batch_first = module.batch_first

    def forward(self, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """Outputs of the query's shape."""
        outputs: Tensor = _Operation.apply(query, self.anchor, self.outputs)  # type: ignore[no-untyped-call]
        return outputs, None


class _Transposed(StandIn):
    def __init__(self, module: TransposedLinear, name: str) -> None:
        axes, inputs = transposed_axes(module, name), module.weight.shape[0]
        super().__init__([axes], layer=name, readers=[f"{name}.weight"], inputs=inputs, reading=0)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of their shape."""
        outputs: Tensor = _Operation.apply(x, self.anchor, self.outputs)  # type: ignore[no-untyped-call]
        return outputs


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

    TARGET_MODULES = (_Direction, _Attention, _Transposed)

    def prune_out_channels(self, layer: StandIn, idxs: Sequence[int]) -> nn.Module:
        return layer

    def prune_in_channels(self, layer: StandIn, idxs: Sequence[int]) -> nn.Module:
        return layer

    def get_out_channels(self, layer: StandIn) -> int:
        return layer.outputs

    def get_in_channels(self, layer: StandIn) -> int:
        return layer.inputs


PRUNERS = {kind: _Pruner() for kind in (_Direction, _Attention, _Transposed)}
"""For torch-pruning's ``customized_pruners``."""


def with_stand_ins(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with stand-ins for its recurrent modules (cells excepted) and multi-head attentions."""
    model = replace_recurrent(model)
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            where = within(parent_name, name)
            if isinstance(child, RecurrentLayers):
                setattr(parent, name, _Recurrence(child, where))
            elif can_replace(child):
                setattr(parent, name, _Attention(MultiheadAttention(child), where))
            elif is_transposed(child):
                setattr(parent, name, _Transposed(TransposedLinear(child), where))
    return model
