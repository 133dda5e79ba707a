"""What a model's forward pass gives: predictions, and where a loss names others, those too.

Of Hugging Face's outputs, of a dict and of a named tuple, ``logits`` are predictions. A loss of the user's own names
more by its parameters: ``loss(logits, hidden, targets)``.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edge_fl.core.errors import ModelError
from exporter.one_pass import one_pass
from exporter.sentence import some_names

__all__ = ["Outputs", "flat_outputs", "predictions", "with_plain_outputs"]

Outputs = Tensor | tuple[Tensor, ...]
"""Predictions ``[B, ...]``; or those, and then what the loss takes, ``[B, ...]`` each."""

_LOGITS = "logits"
_SHOWN = 8  # names in an error


def predictions(outputs: Outputs) -> Tensor:
    """What is scored, predicted and delivered."""
    return outputs if isinstance(outputs, Tensor) else outputs[0]


def flat_outputs(outputs: Outputs) -> Tensor:
    """All that the loss hangs on, as one tensor: the outputs themselves where there is one."""
    return outputs if isinstance(outputs, Tensor) else torch.cat([each.flatten(1) for each in outputs], dim=1)


def with_plain_outputs(model: nn.Module, x: Tensor, names: Sequence[str]) -> nn.Module:
    """``model``, or where its forward gives more than one tensor, a copy that gives :data:`Outputs`.

    Parameters
    ----------
    x
        A batch of samples.
    names
        The outputs that the loss takes, as its parameters call them; none of a loss that takes predictions.

    Raises
    ------
    ModelError
        When the loss does not say which of several outputs it takes, or takes what the model does not give.
    """
    try:
        outputs = one_pass(model, x)
    except Exception:  # whoever calls the model next says what is wrong with it
        return model
    taken = _taken(outputs, names)
    if taken is None:
        return model
    if odd := [name for name in taken if _read(outputs, name).shape[:1] != x.shape[:1]]:
        raise ModelError(
            f"The output '{odd[0]}' is not one value or tensor a sample, [B, ...]: the loss takes those."
        )
    plain = copy.deepcopy(model)
    plain.register_forward_hook(_Give(taken))
    return plain


class _Give:
    """Gives what is called by these names in place of what forward gives: the first alone where there is one."""

    def __init__(self, names: Sequence[str | int]) -> None:
        self._names = tuple(names)

    def __call__(self, _: nn.Module, __: Any, outputs: Any) -> Outputs:
        given = tuple(_read(outputs, name) for name in self._names)
        return given if len(given) > 1 else given[0]


def _taken(outputs: Any, names: Sequence[str]) -> tuple[str | int, ...] | None:
    """Predictions, and then what the loss takes; None of outputs that are left as they are."""
    several = len(names) > 1
    if isinstance(outputs, Tensor) and not several:
        return None
    if names and not isinstance(outputs, Tensor) and all(_is_there(outputs, name) for name in names):
        first = _LOGITS if _is_there(outputs, _LOGITS) else names[0]
        return (first,) if tuple(names) == (first,) else (first, *names)
    if not several and _is_there(outputs, _LOGITS):
        return (_LOGITS,)
    if not several:
        raise ModelError(
            f"The model gives {_described(outputs)}: call what is trained '{_LOGITS}', or give a loss of your own that "
            "names the outputs it takes, and targets last."
        )
    if type(outputs) in (tuple, list) and len(outputs) == len(names):
        return (0, *range(len(names)))
    raise ModelError(
        f"The loss takes the outputs {some_names(names, most=_SHOWN)}, and the model gives {_described(outputs)}: name "
        "the loss's parameters as the model's outputs, and targets last."
    )


def _is_there(outputs: Any, name: str | int) -> bool:
    return isinstance(_read(outputs, name), Tensor)


def _read(outputs: Any, name: str | int) -> Any:
    if isinstance(name, int):
        return outputs[name]
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _described(outputs: Any) -> str:
    if isinstance(outputs, Tensor):
        return "one tensor"
    if isinstance(outputs, Mapping):
        return some_names([str(name) for name in outputs], most=_SHOWN)
    return f"{len(outputs)} without names" if isinstance(outputs, tuple | list) else f"a {type(outputs).__name__}"
