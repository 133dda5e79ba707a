"""Modules as single operations, for following a model's structure: torch-pruning cannot look into loops or heads.

A stand-in gives outputs of the right shapes and of no meaning; what its units own is declared
(:mod:`exporter.recurrent.axes`, :mod:`exporter.multihead`).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

from exporter.module_names import within
from exporter.multihead import MultiheadAttention, attention_axes, can_replace
from exporter.recurrent import recurrent_axes, replace_recurrent
from exporter.recurrent.layers import LstmLayers, RecurrentLayers
from exporter.transposed import TransposedLinear, is_transposed, transposed_axes
from exporter.unit_axes import UnitAxes

__all__ = ["PRUNERS", "StandIn", "with_stand_ins"]


class StandIn(nn.Module):
    """A module as one operation.

    Parameters
    ----------
    axes
        The units of every layer in it.
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
        readers: Sequence[str],
        inputs: int,
        recurrent: bool = False,
        reading: int = 1,
    ) -> None:
        super().__init__()
        self.reading = reading
        self.axes, self.readers, self.inputs, self.recurrent = tuple(axes), tuple(readers), inputs, recurrent
        self.outputs = sum(each.size for each in self.axes if each.outputs is not None)
        self.anchor = nn.Parameter(torch.zeros(()))  # the module may come first, where nothing else has a gradient


class _Recurrence(StandIn):
    def __init__(self, module: RecurrentLayers, name: str) -> None:
        readers = [within(name, p) for p, _ in module.named_parameters() if "ih_l0" in p and "weight" in p]
        axes = recurrent_axes(module, name)
        super().__init__(
            axes, readers=readers, inputs=module.get_parameter("weight_ih_l0").shape[1], recurrent=True
        )
        self.layers = len(self.axes)
        self.batch_first, self.pair = module.batch_first, isinstance(module, LstmLayers)

    def flatten_parameters(self) -> None:
        """As torch's, which models call for cuDNN: nothing is done."""

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Outputs and last states of the shapes that torch gives."""
        del hx
        outputs: Tensor = _Operation.apply(x, self.anchor, self.outputs)  # type: ignore[no-untyped-call]
        time = 1 if self.batch_first and x.dim() == 3 else 0
        last = outputs.select(time, -1)[..., : self.axes[-1].size].unsqueeze(0)
        last = last.expand(self.layers, *last.shape[1:])
        return outputs, (last, last) if self.pair else last


class _Attention(StandIn):
    def __init__(self, module: MultiheadAttention, name: str) -> None:
        super().__init__(
            attention_axes(module, name),
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
        super().__init__([axes], readers=[f"{name}.weight"], inputs=inputs, reading=0)

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

    TARGET_MODULES = (_Recurrence, _Attention, _Transposed)

    def prune_out_channels(self, layer: StandIn, idxs: Sequence[int]) -> nn.Module:
        return layer

    def prune_in_channels(self, layer: StandIn, idxs: Sequence[int]) -> nn.Module:
        return layer

    def get_out_channels(self, layer: StandIn) -> int:
        return layer.outputs

    def get_in_channels(self, layer: StandIn) -> int:
        return layer.inputs


PRUNERS = {kind: _Pruner() for kind in (_Recurrence, _Attention, _Transposed)}
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
