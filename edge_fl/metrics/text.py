"""Scores for people."""

import re
from collections.abc import Mapping

__all__ = ["clipped_text", "is_percent", "loss_text", "lower_is_better", "score_text", "scores_text"]

_NAMED = 10  # clients named in a sentence, at the most
_PERCENT = re.compile(r"accuracy|binary-accuracy|macro-f1|mean-iou|top-\d+")
_LOWER = frozenset({"loss", "mae", "perplexity", "rmse", "train_loss"})


def is_percent(name: str) -> bool:
    """Whether people read the score of this name as a share of 1."""
    return _PERCENT.fullmatch(name) is not None


def lower_is_better(name: str) -> bool:
    """Whether the smaller of two scores of this name is the better."""
    return name in _LOWER


def score_text(name: str, value: float) -> str:
    """``accuracy 92.1%`` or ``rmse 0.1234``."""
    return f"{name} {value:.1%}" if is_percent(name) else f"{name} {value:.4g}"


def scores_text(scores: Mapping[str, float]) -> str:
    """All of them, with commas between."""
    return ", ".join(score_text(name, value) for name, value in scores.items())


def loss_text(loss: float | None, train_loss: float | None) -> str:
    """``loss 0.1234`` on held-out data, or the training loss where there is none; nothing where clients withhold it."""
    if loss is not None:
        return f"loss {loss:.4f}"
    return "" if train_loss is None else f"training loss {train_loss:.4f}"


def clipped_text(clipped: Mapping[str, float]) -> str:
    """``left out c3, clipped c7 to 60%``: what bounds left of whose change, the least first; nothing without any."""
    least = sorted(clipped.items(), key=lambda item: item[1])
    named = [f"clipped {client} to {share:.0%}" if share else f"left out {client}" for client, share in least]
    more = [f"{len(least) - _NAMED} more"] if len(least) > _NAMED else []
    return ", ".join([*named[:_NAMED], *more])
