"""Subclasses of torch's layers: whether they compute what torch's do."""

from torch import nn

__all__ = ["activates", "has_torchs_forward"]


def has_torchs_forward(module: nn.Module) -> bool:
    """Whether it runs the forward of one of torch's own classes."""
    return type(module).forward.__module__.startswith("torch.")


def activates(module: nn.Module) -> bool:
    """Whether it has layers ``drop`` and ``act``, as timm's classes of normalisation have behind it."""
    return all(isinstance(getattr(module, name, None), nn.Module) for name in ("drop", "act"))
