"""How many tokens a model knows: the rows of the embedding that its input is looked up in."""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["vocabulary_of"]


def vocabulary_of(model: nn.Module, x: Tensor) -> int:
    """The rows of the smallest ``nn.Embedding`` that reads ``x`` itself; 0 where none does.

    An embedding of positions or types reads tensors that forward made. They share no memory with ``x``.
    """
    found: list[int] = []

    def look(module: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(module, nn.Embedding)
        if given and isinstance(given[0], Tensor) and _same_memory(given[0], x):
            found.append(module.num_embeddings)

    held = [
        module.register_forward_pre_hook(look) for module in model.modules() if isinstance(module, nn.Embedding)
    ]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(x)
    finally:
        model.train(training)
        for handle in held:
            handle.remove()
    return min(found, default=0)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
