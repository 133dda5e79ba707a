"""Torch's own losses, as people write them, by the names of the exporter's."""

from typing import Any

from torch import nn
from torch.nn import functional

__all__ = ["named_as"]

_MODULES: dict[type[nn.Module], str] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.MSELoss: "mse",
    nn.L1Loss: "l1",
    nn.HuberLoss: "huber",
    nn.SmoothL1Loss: "huber",
    nn.BCEWithLogitsLoss: "binary_cross_entropy",
}
_FUNCTIONS: dict[Any, str] = {
    functional.cross_entropy: "cross_entropy",
    functional.mse_loss: "mse",
    functional.l1_loss: "l1",
    functional.huber_loss: "huber",
    functional.smooth_l1_loss: "huber",
    functional.binary_cross_entropy_with_logits: "binary_cross_entropy",
}


def named_as(loss: object) -> str | None:
    """The loss that trains the same, where ``loss`` is one of torch's with torch's defaults.

    Those give the mean over the batch, and the exporter needs a value for each sample. None of anything else.
    """
    if isinstance(loss, nn.Module):
        kind = type(loss)
        return _MODULES.get(kind) if kind in _MODULES and _settings(loss) == _settings(kind()) else None
    return next((name for function, name in _FUNCTIONS.items() if function is loss), None)


def _settings(loss: nn.Module) -> dict[str, object]:
    """What it was made with, class weights among it; whether it is in training mode says nothing."""
    own = {name: value for name, value in vars(loss).items() if not name.startswith("_") and name != "training"}
    return own | {name: None if value is None else value.tolist() for name, value in loss._buffers.items()}
