"""How many tokens a model knows: the rows of the embedding that an input is looked up in."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from exporter.one_pass import one_pass

__all__ = ["vocabularies_of"]


def vocabularies_of(model: nn.Module, x: Tensor) -> dict[str, int]:
    """For each input the rows of the smallest ``nn.Embedding`` that reads it; inputs that none reads are left out.

    An input without a name is called "". An embedding of positions or types that forward makes reads none: its tensors
    share no memory with an input.
    """
    inputs: dict[str, Tensor] = {}
    found: dict[str, int] = {}

    def note(_: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        held = {**({"": given[0]} if given else {}), **named}
        inputs.update({name: each for name, each in held.items() if isinstance(each, Tensor)})

    def look(module: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(module, nn.Embedding)
        for name, each in inputs.items():
            if given and isinstance(given[0], Tensor) and _reads(given[0], each):
                found[name] = min(found.get(name, module.num_embeddings), module.num_embeddings)

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    watching = [module.register_forward_pre_hook(look) for module in embeddings]
    watching.append(
        model.register_forward_pre_hook(note, with_kwargs=True)
    )  # after the hook that cuts the array up
    one_pass(model, x, watching)
    return found


def _reads(given: Tensor, each: Tensor) -> bool:
    """Whether ``given`` begins in the memory of ``each``: inputs that were cut from one array lie side by side."""
    same = given.untyped_storage().data_ptr() == each.untyped_storage().data_ptr()
    reach = sum((n - 1) * stride for n, stride in zip(each.shape, each.stride(), strict=True))
    offset = given.storage_offset() - each.storage_offset()
    return (
        same and 0 <= offset <= reach and offset % (each.stride(0) if each.ndim else 1) < max(each[0].numel(), 1)
    )
