"""What a model's forward pass gives: predictions, and where a loss names others, those too.

Of Hugging Face's outputs, of a dict and of a named tuple, ``logits`` are predictions. A loss of the user's own names
more by its parameters: ``loss(logits, hidden, targets)``.
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edge_fl.core.errors import ModelError
from exporter.one_pass import one_pass
from exporter.sentence import some_names

__all__ = ["Outputs", "Several", "flat_outputs", "predictions", "with_plain_outputs"]


class Several(NamedTuple):
    """``predictions`` ``[B, ...]``, and what a loss takes, ``[B, ...]`` each."""

    predictions: Tensor
    taken: tuple[Tensor, ...]


Outputs = Tensor | Several
"""Predictions alone, which the loss takes, too; or several outputs."""

_LOGITS = "logits"
_SHOWN = 8  # names in an error


def predictions(outputs: Outputs) -> Tensor:
    """What is scored, predicted and delivered."""
    return outputs if isinstance(outputs, Tensor) else outputs.predictions


def flat_outputs(outputs: Outputs) -> Tensor:
    """All that the loss hangs on, as one tensor: the outputs themselves where there is one."""
    if isinstance(outputs, Tensor):
        return outputs
    return torch.cat([each.reshape(each.shape[0], -1) for each in (outputs.predictions, *outputs.taken)], dim=1)


def with_plain_outputs(model: nn.Module, x: Tensor, names: Sequence[str]) -> nn.Module:
    """``model``, or a copy that gives :data:`Outputs`: where its forward gives more than one tensor, or one number a
    sample without an axis, ``[B]``, which become ``[B, 1]``.

    Parameters
    ----------
    x
        A batch of samples; the model is run on it in evaluation.
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
    if isinstance(outputs, Tensor) and len(names) <= 1:
        return _with_an_axis(model) if outputs.shape == x.shape[:1] else model
    predicted, taken = _chosen(outputs, names)
    for name in (predicted, *taken):
        if _read(outputs, name).shape[:1] != x.shape[:1]:
            raise ModelError(
                f"The output '{name}' is not of each sample, [B, ...]: the loss takes only such outputs."
            )
    plain = copy.deepcopy(model)
    plain.register_forward_hook(_Give(predicted, () if taken == (predicted,) else taken))
    return plain


def _with_an_axis(model: nn.Module) -> nn.Module:
    plain = copy.deepcopy(model)
    plain.register_forward_hook(_give_columns)
    return plain


def _give_columns(_: nn.Module, __: Any, outputs: Tensor) -> Tensor:
    return outputs.reshape(-1, 1)  # of one sample, squeeze() leaves no axis at all


class _Give:
    """Gives what is called so in place of what forward gives."""

    def __init__(self, predicted: str | int, taken: Sequence[str | int]) -> None:
        self._predicted, self._taken = predicted, tuple(taken)

    def __call__(self, _: nn.Module, __: Any, outputs: Any) -> Outputs:
        predicted: Tensor = _read(outputs, self._predicted)
        return (
            Several(predicted, tuple(_read(outputs, each) for each in self._taken)) if self._taken else predicted
        )


def _chosen(outputs: Any, names: Sequence[str]) -> tuple[str | int, tuple[str | int, ...]]:
    """What is predicted, and what the loss takes: outputs by name, or of a tuple without names by place."""
    several, logits = len(names) > 1, isinstance(_read(outputs, _LOGITS), Tensor)
    if names and all(isinstance(_read(outputs, name), Tensor) for name in names):
        return _LOGITS if logits else names[0], tuple(names)
    if logits and not several:
        return _LOGITS, (_LOGITS,)
    in_order = type(outputs) in (tuple, list) and all(isinstance(each, Tensor) for each in outputs)
    if in_order and len(outputs) == max(len(names), 1):
        return 0, tuple(range(len(outputs)))
    if several:
        raise ModelError(
            f"The loss takes the outputs {some_names(names, most=_SHOWN)}, and the model gives in evaluation "
            f"{_described(outputs)}: name the loss's parameters as tensors that the model gives, and targets last."
        )
    raise ModelError(
        f"The model gives {_described(outputs)}: give what is trained the name '{_LOGITS}', or have a loss of your own "
        "take outputs by their names, and targets last."
    )


def _read(outputs: Any, name: str | int) -> Any:
    if isinstance(name, int):
        return outputs[name]
    if isinstance(outputs, Tensor):
        return None
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _described(outputs: Any) -> str:
    """Its parts, and of those that are no tensors what they are."""
    if isinstance(outputs, Tensor):
        return "one tensor"
    if isinstance(outputs, Mapping):
        parts = {str(name): value for name, value in outputs.items()}
    elif hasattr(outputs, "_fields"):
        parts = outputs._asdict()
    elif dataclasses.is_dataclass(outputs):
        parts = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
    elif isinstance(outputs, tuple | list):
        parts = {f"number {place}": value for place, value in enumerate(outputs)}
    else:
        return f"a {type(outputs).__name__}"
    odd = [
        f"'{name}' is a {type(value).__name__}" for name, value in parts.items() if not isinstance(value, Tensor)
    ]
    return some_names(list(parts), most=_SHOWN) + (f", of which {', '.join(odd[:_SHOWN])}" if odd else "")
