"""Losses by name, each a value per sample, so that a padded sample can weigh nothing."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.bundle import LABEL_MASK
from edge_fl.core.errors import ConfigError, ModelError
from edge_fl.core.inputs import Input
from exporter.model_file import load_function
from exporter.one_pass import one_pass
from exporter.own_outputs import Outputs
from exporter.sentence import first_line
from exporter.torch_losses import named_as

__all__ = ["Loss", "find_loss", "first_is_usual", "try_loss"]


@dataclass(frozen=True)
class Loss:
    """A loss and what it is computed from.

    ``per_sample`` takes the outputs ``[B, ...]``, the targets ``[B, ...]`` of dtype ``target`` and one tensor for
    each of ``inputs``, and gives ``[B]``. ``leaves_out`` says that targets may be
    :data:`edge_fl.core.batch.LEFT_OUT` where a sample has several. ``outputs`` are the names of those that a user's
    function takes, of a model that gives several (:mod:`exporter.own_outputs`); none where it takes predictions.
    ``classes`` says where in outputs of several positions it wants the axis of classes: None for either place.
    ``positions`` says whether a sample may have several targets at all.
    """

    name: str
    target: Literal["float32", "int64"]
    per_sample: Callable[..., Tensor]
    inputs: tuple[str, ...] = ()
    leaves_out: bool = False
    outputs: tuple[str, ...] = ()
    classes: Literal["first", "last"] | None = "last"
    positions: bool = True

    def output_shapes(self, target: Input, classes: int) -> tuple[tuple[int, ...], ...]:
        """What a model may give for a sample, without the batch axis, to be compared with ``target``."""
        if target.dtype == "float32":
            return (target.shape,)
        last, first = (*target.shape, classes), (classes, *target.shape)
        either = (first, last) if first_is_usual(target) else (last, first)
        return {"last": (last,), "first": (first,), None: either}[self.classes]


def first_is_usual(target: Input) -> bool:
    """Whether models give classes before such targets' axes: those of images do, those of sequences behind."""
    return len(target.shape) > 1


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs ``[B, C]`` and targets ``[B]``, or ``[B, C, ...]`` and ``[B, ...]``: the mean over a sample's targets."""
    if y.dim() > 1:
        return _cross_entropy_of_positions(outputs, y)
    # Not cross_entropy: its ignore_index would cost every step a handful of comparisons.
    return -functional.log_softmax(outputs, dim=1).gather(1, y.unsqueeze(1)).squeeze(1)


def _cross_entropy_of_positions(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs ``[B, C, ...]``, targets ``[B, ...]``; the mean over a sample's positions that have a target."""
    there = (y != LEFT_OUT).to(outputs.dtype).flatten(1)
    classes = y.clamp(min=0).flatten(1).unsqueeze(1)
    likelihood = functional.log_softmax(outputs.flatten(2), dim=1).gather(1, classes).squeeze(1)
    return -(likelihood * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)


def _masked_cross_entropy(outputs: Tensor, y: Tensor, label_mask: Tensor) -> Tensor:
    """HeteroFL section 3: the outputs of classes that a client has no sample of (0 in ``[C]``) are set to zero."""
    return _cross_entropy(outputs * label_mask, y)


def _sequence_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs ``[B, T, C]``, targets ``[B, T]``; the mean over the T positions."""
    likelihood = functional.log_softmax(outputs.flatten(0, 1), dim=1).gather(1, y.reshape(-1, 1))
    return -likelihood.reshape(y.shape).mean(dim=1)


def _padded_sequence_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs ``[B, T, C]``, targets ``[B, T]``; the mean over a sample's positions that have a target."""
    there = (y != LEFT_OUT).to(outputs.dtype)
    likelihood = functional.log_softmax(outputs.flatten(0, 1), dim=1).gather(1, y.clamp(min=0).reshape(-1, 1))
    return -(likelihood.reshape(y.shape) * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)


def _mse(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs and targets ``[B, ...]``; the mean over all but the batch axis."""
    difference = outputs - y
    return (difference * difference).flatten(1).mean(dim=1)


def _l1(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs and targets ``[B, ...]``: the mean of ``|outputs - y|`` over all but the batch axis."""
    return (outputs - y).abs().flatten(1).mean(dim=1)


def _huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs and targets ``[B, ...]``: d^2 / 2 where |d| < 1, else |d| - 1/2; the mean over all but the batch axis."""
    size = (outputs - y).abs()
    near = size.clamp(max=1.0)
    return (near * (size - 0.5 * near)).flatten(1).mean(dim=1)


def _binary_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs are logits, targets in [0, 1], both ``[B, ...]``; the mean over all but the batch axis."""
    # max(z, 0) - z y + log(1 + exp(-|z|)) does not overflow.
    losses = functional.relu(outputs) - outputs * y + (1 + (-outputs.abs()).exp()).log()
    return losses.flatten(1).mean(dim=1)


_LOSSES = (
    Loss("cross_entropy", "int64", _cross_entropy, leaves_out=True, classes="first"),
    Loss("masked_cross_entropy", "int64", _masked_cross_entropy, inputs=(LABEL_MASK,), positions=False),
    Loss("sequence_cross_entropy", "int64", _sequence_cross_entropy),
    Loss("padded_sequence_cross_entropy", "int64", _padded_sequence_cross_entropy, leaves_out=True),
    Loss("mse", "float32", _mse),
    Loss("l1", "float32", _l1),
    Loss("huber", "float32", _huber),
    Loss("binary_cross_entropy", "float32", _binary_cross_entropy),
)


def find_loss(name: str | Callable[..., Tensor], *, target: Literal["float32", "int64"] = "int64") -> Loss:
    """The loss called ``name``, or the user's own.

    Parameters
    ----------
    name
        One of this module's, ``path/to/file.py:function``, or a function: of outputs ``[B, ...]`` and targets
        ``[B, ...]`` it gives ``[B]``; or of several outputs, by the names of its parameters, and targets. A loss of
        torch's with torch's defaults is one of this module's (:func:`exporter.torch_losses.named_as`).
    target
        The dtype of the targets of a user's function.

    Raises
    ------
    ConfigError
        When there is no loss of that name.
    ModelError
        When the user's file or function cannot be had.
    """
    given: object = name
    if not isinstance(given, str) and not callable(given):
        raise ConfigError(f"A loss is a name such as 'mse', 'file.py:function' or a function, not {given!r}.")
    if not isinstance(name, str) or ":" in name:
        function = load_function(name) if isinstance(name, str) else name
        if known := named_as(function):
            return find_loss(known)
        name = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
        called = name.rpartition(":")[2]
        return Loss(called, target, _of_outputs(function), outputs=_output_names(name, function), classes=None)
    for loss in _LOSSES:
        if loss.name == name:
            return loss
    raise ConfigError(
        f"There is no loss '{name}'; there are {', '.join(loss.name for loss in _LOSSES)}, or write your own as "
        "path/to/file.py:function."
    )


def try_loss(loss: Loss, model: nn.Module, x: Tensor, target: Input) -> None:
    """Refuse a user's loss that fails, or gives anything but one value a sample.

    Parameters
    ----------
    model
        Gives :data:`exporter.own_outputs.Outputs` of the samples ``x``.
    target
        What a sample's target is; zeros are tried.

    Raises
    ------
    ModelError
        When the loss fails, or what it gives is not ``[B]``.
    """
    if loss in _LOSSES:
        return
    y = torch.zeros(len(x), *target.shape, dtype=getattr(torch, target.dtype))
    outputs = one_pass(model, x)
    try:
        found = loss.per_sample(outputs, y)
    except Exception as error:  # it is the user's code
        given = f"outputs {tuple(outputs.shape)} and " if isinstance(outputs, Tensor) else ""
        raise ModelError(
            f"The loss '{loss.name}' fails on {given}targets {tuple(y.shape)}: {first_line(error)}."
        ) from error
    if not isinstance(found, Tensor) or found.shape != (len(x),):
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ModelError(
            f"The loss '{loss.name}' gives {shown} for {len(x)} samples: give one value a sample, [B], as with "
            'reduction="none".'
        )


def _output_names(name: str, function: Callable[..., Tensor]) -> tuple[str, ...]:
    """The parameters of a user's loss but the last, which are targets; none of one whose parameters nobody can read."""
    try:
        called = function.forward if isinstance(function, nn.Module) else function
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return ()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return ()
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if len(needed) < 2 or any(p.kind is p.KEYWORD_ONLY for p in needed):
        raise ConfigError(
            f"The loss '{name}' takes {inspect.signature(called)}: let it take the model's outputs and then targets, "
            "without defaults, as in loss(outputs, targets)."
        )
    return tuple(p.name for p in needed)[:-1]


def _of_outputs(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` of the outputs it takes."""

    def per_sample(outputs: Outputs, y: Tensor) -> Tensor:
        losses = function(outputs, y) if isinstance(outputs, Tensor) else function(*outputs.taken, y)
        column = isinstance(losses, Tensor) and losses.dim() == 2 and losses.shape[1] == 1
        return losses.squeeze(1) if column else losses  # as torch's losses give them for outputs [B, 1]

    return per_sample
