"""Attention that counts its heads by the weights at hand, for code that holds their number."""

from typing import Any

from torch import Tensor, nn

from exporter.transposed import is_transposed

__all__ = ["count_heads_by_weights"]

_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_QUERIES = {"q_proj": 1, "q_lin": 1, "query": 1, "qkv": 3, "c_attn": 3, "query_key_value": 3}
"""The layers that give queries, and how many of q, k and v each gives."""


def count_heads_by_weights(model: nn.Module) -> None:
    """Have modules that hold their number of heads, and of features of all heads, take both from their weights.

    They do so before each call, and have their own numbers back after it.
    """
    for module in model.modules():
        name = next((n for n in _COUNTS if type(getattr(module, n, None)) is int), None)
        layer = None if name is None else _first_layer(module)
        if name is None or layer is None:
            continue
        child, parts = layer
        rows = _rows(getattr(module, child))
        heads = getattr(module, name)
        if heads > 1 and rows % (parts * heads) == 0:
            _Counted(module, child, heads=heads, features=rows // parts // heads, parts=parts).register()


class _Counted:
    """A module's own numbers, which follow the rows of one of its layers."""

    def __init__(self, module: nn.Module, layer: str, *, heads: int, features: int, parts: int) -> None:
        self._module, self._layer, self._features, self._parts = module, layer, features, parts
        held = {name: value for name, value in vars(module).items() if type(value) is int}
        self._heads = {name: value for name, value in held.items() if name in _COUNTS and value == heads}
        self._all = {
            name: value for name, value in held.items() if value == heads * features and name not in self._heads
        }

    def register(self) -> None:
        self._module.register_forward_pre_hook(self._follow)
        self._module.register_forward_hook(self._restore, always_call=True)

    def _follow(self, module: nn.Module, _: Any) -> None:
        rows = _rows(getattr(module, self._layer)) // self._parts
        for name in self._heads:
            setattr(module, name, rows // self._features)
        for name in self._all:
            setattr(module, name, rows)

    def _restore(self, module: nn.Module, _: Any, __: Any) -> None:
        for name, value in {**self._heads, **self._all}.items():
            setattr(module, name, value)


def _first_layer(module: nn.Module) -> tuple[str, int] | None:
    for name, child in module.named_children():
        if name in _QUERIES and (isinstance(child, nn.Linear) or is_transposed(child)):
            return name, _QUERIES[name]
    return None


def _rows(layer: nn.Module) -> int:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight.shape[1] if is_transposed(layer) else weight.shape[0]
