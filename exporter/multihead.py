"""``nn.MultiheadAttention`` as a function of its tensors, so that it runs with some of its heads.

torch's own holds how many heads it has, and checks its weights against that. Names and values of the tensors are the
same here. What stays is how many features a head has.
"""

from typing import NamedTuple, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from exporter.attention import weigh
from exporter.lora import LoraLayer
from exporter.module_names import within
from exporter.replace_modules import replace_modules
from exporter.unit_axes import UnitAxes

__all__ = ["MultiheadAttention", "attention_axes", "can_replace", "replace_attention"]


def can_replace(module: nn.Module) -> TypeGuard[nn.MultiheadAttention]:
    """Whether it is torch's own, without the biases that are appended to keys and values."""
    return type(module) is nn.MultiheadAttention and module.bias_k is None and not module.add_zero_attn


class _Projection(NamedTuple):
    weight: Tensor
    bias: Tensor | None


class MultiheadAttention(nn.Module):
    """Attention of ``[length, batch, features]``, or with ``batch_first`` of ``[batch, length, features]``."""

    def __init__(self, module: nn.MultiheadAttention) -> None:
        super().__init__()
        self.in_proj_weight, self.in_proj_bias = module.in_proj_weight, module.in_proj_bias
        self.q_proj_weight, self.k_proj_weight = module.q_proj_weight, module.k_proj_weight
        self.v_proj_weight = module.v_proj_weight
        self.out_proj = module.out_proj
        self.head_dim, self.batch_first = module.head_dim, module.batch_first
        self.dropout = module.dropout
        self._qkv_same_embed_dim = (
            False  # keeps an encoder layer from its shortcut, which looks into its attention
        )
        self.train(module.training)

    def forward(  # noqa: PLR0917  # torch's own signature
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's: outputs, and the attention's weights, means over heads unless those are wanted one by one.

        Masks are true where a key is *not* read, or are added; ``is_causal`` only says what ``attn_mask`` is.
        """
        del is_causal
        alone = query.dim() == 2
        if alone or not self.batch_first:
            query, key, value = (x.unsqueeze(0) if alone else x.transpose(0, 1) for x in (query, key, value))
        heads = [self._heads(x, part) for x, part in zip((query, key, value), self._projections(), strict=True)]
        masks = []
        if attn_mask is not None:
            each = attn_mask.dim() == 3  # a mask for each head of each sample
            masks.append(attn_mask.reshape(-1, heads[0].shape[1], *attn_mask.shape[1:]) if each else attn_mask)
        if key_padding_mask is not None:
            padding = key_padding_mask.unsqueeze(0) if alone else key_padding_mask
            masks.append(padding[:, None, None, :])
        weights = weigh(heads[0], heads[1], map(_read, masks), scale=self.head_dim**-0.5)
        weights = functional.dropout(weights, self.dropout, self.training)
        joined = (weights @ heads[2]).transpose(1, 2).flatten(2)
        outputs: Tensor = self.out_proj(joined)
        if alone or not self.batch_first:
            outputs = outputs.squeeze(0) if alone else outputs.transpose(0, 1)
        if not need_weights:
            return outputs, None
        shown = weights.mean(1) if average_attn_weights else weights
        return outputs, shown.squeeze(0) if alone else shown

    def _projections(self) -> list[_Projection]:
        """Of query, key and value."""
        whole, bias = self.in_proj_weight, self.in_proj_bias
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        # Not chunks, whose lengths a trace rounds up and does not know to be thirds.
        parts = apart if whole is None else whole.reshape(3, -1, whole.shape[1]).unbind()
        biases = (None,) * 3 if bias is None else bias.reshape(3, -1).unbind()
        return [_Projection(*pair) for pair in zip(parts, biases, strict=True)]

    def _heads(self, x: Tensor, projection: _Projection) -> Tensor:
        """``[batch, heads, length, features of a head]``."""
        projected = functional.linear(x, projection.weight, projection.bias)
        return projected.reshape(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


def replace_attention(model: nn.Module) -> nn.Module:
    """``model``, in which every attention of torch's is replaced by one of ours."""
    replace_modules(model, lambda module: MultiheadAttention(module) if can_replace(module) else module)
    return model


def attention_axes(module: MultiheadAttention, name: str) -> list[UnitAxes]:
    """The heads, which only ``out_proj`` reads, the features of the outputs, and ranks of an adapter of ``out_proj``.

    Parameters
    ----------
    name
        The module's in the model, before those of its parameters.
    """
    outputs, inputs = module.out_proj.weight.shape
    heads = np.arange(inputs) // module.head_dim
    adapter = module.out_proj if isinstance(module.out_proj, LoraLayer) else None
    rows = {
        (within(name, own), 0): np.tile(heads, len(parameter) // inputs)
        for own, parameter in module.named_parameters(recurse=False)
    }
    out = within(name, "out_proj")
    features = {
        (f"{out}.{own}", 0): np.arange(outputs)
        for own, _ in module.out_proj.named_parameters()
        if own != "lora_A.weight"
    }
    readers = ("base_layer.weight", "lora_A.weight") if adapter is not None else ("weight",)
    columns = {(f"{out}.{own}", 1): heads for own in readers}
    axes = [
        UnitAxes(within(name, "heads"), inputs // module.head_dim, {**rows, **columns}, frozenset(rows), None),
        UnitAxes(out, outputs, features, frozenset(features), slice(0, outputs)),
    ]
    return [*axes, _rank_axes(adapter, out)] if adapter is not None else axes


def _rank_axes(layer: LoraLayer, name: str) -> UnitAxes:
    down, up = (f"{name}.lora_A.weight", 0), (f"{name}.lora_B.weight", 1)
    ranks = np.arange(len(cast("Tensor", layer.lora_A.weight)))
    return UnitAxes(f"{name}.lora_A", len(ranks), {down: ranks, up: ranks}, frozenset([down]), None, is_layer=True)


def _read(mask: Tensor) -> Tensor:
    """True where a key is read, as the rest of torch has it."""
    return ~mask if mask.dtype == torch.bool else mask
