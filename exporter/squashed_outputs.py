"""Outputs that the model squashes and the loss squashes once more: a usual mistake, of which nothing else tells."""

import logging

from torch import Tensor, nn

from exporter.losses import Loss
from exporter.one_pass import one_pass
from exporter.own_outputs import predictions

__all__ = ["warn_of_squashed_outputs"]

_log = logging.getLogger(__name__)
_SIGMOID, _SOFTMAX = {"SigmoidBackward0": "sigmoid"}, {"SoftmaxBackward0": "softmax"}
_OF_CLASSES = ("cross_entropy", "masked_cross_entropy", "sequence_cross_entropy", "padded_sequence_cross_entropy")
_SQUASHES = {"binary_cross_entropy": _SIGMOID} | dict.fromkeys(_OF_CLASSES, _SIGMOID | _SOFTMAX)
"""By loss, torch's nodes of gradients that its outputs should not come from, and what these are."""
_MOVES = (
    "View",
    "ReshapeAlias",
    "Squeeze",
    "Unsqueeze",
    "Select",
    "Slice",
    "Transpose",
    "Permute",
    "Clone",
    "Alias",
)


def warn_of_squashed_outputs(model: nn.Module, x: Tensor, loss: Loss) -> None:
    """Log a warning where the outputs of ``model`` for samples ``x`` are no logits, which ``loss`` takes."""
    found = _SQUASHES.get(loss.name, {}).get(_last_operation(model, x))
    if found is not None:
        _log.warning(
            "The model ends in a %s, and the loss '%s' takes logits, so it learns little: leave the %s out.",
            *(found, loss.name, found),
        )


def _last_operation(model: nn.Module, x: Tensor) -> str:
    """The node of gradients that the outputs come from, "" where they have none; reshapes are looked through."""
    outputs = predictions(one_pass(model, x, gradients=True))
    node = outputs.grad_fn
    while node is not None and node.name().startswith(_MOVES):
        node = node.next_functions[0][0]
    return "" if node is None else node.name()
