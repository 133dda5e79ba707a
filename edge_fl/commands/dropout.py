"""A model's own dropout in words."""

from collections.abc import Mapping

__all__ = ["dropout_text"]

_SHOWN = 4


def dropout_text(places: Mapping[str, float]) -> str:
    """Where the model itself drops in training, and with which probabilities."""
    shown = ", ".join(f"{name} {p:.3g}" for name, p in list(places.items())[:_SHOWN])
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    count = "1 place" if len(places) == 1 else f"{len(places)} places"
    return f"The model's own dropout trains in {count}: {shown}{more}."
