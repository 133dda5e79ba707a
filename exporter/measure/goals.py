"""What a training step is meant to cost at the most, as ratios to torch eager and to its own full width."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["reached"]

_MLPS = ("digits-mlp", "fashion-mnist-mlp", "mnist-mlp")
_CNNS = ("femnist-cnn", "femnist-cnn-32-64")
_LSTMS = ("ptb-lstm", "shakespeare-rnn")
_DEVICES = ("onnx", "executorch")


@dataclass(frozen=True)
class _Goal:
    ratio: str
    limit: float
    models: tuple[str, ...]
    runtimes: tuple[str, ...] = _DEVICES


_GOALS = (
    _Goal("full / eager", 1.0, (*_MLPS, *_CNNS, *_LSTMS), ("onnx",)),
    _Goal("full / eager", 1.1, (*_MLPS, *_CNNS), ("executorch",)),
    _Goal("full / eager", 1.3, ("resnet18",), ("onnx",)),
    _Goal("half / full", 0.5, (*_MLPS, *_LSTMS)),
    _Goal("half / eager's half", 0.7, _CNNS),
)


def reached(model: str, runtime: str, ratios: Mapping[str, float]) -> str:
    """Each goal for ``model`` on ``runtime`` and whether its ratio reached it; empty where there is none."""
    goals = [goal for goal in _GOALS if model in goal.models and runtime in goal.runtimes]
    verdicts = (
        f"{goal.ratio} ≤ {goal.limit:g}: {'yes' if ratios[goal.ratio] <= goal.limit else 'no'}" for goal in goals
    )
    return "; ".join(verdicts)
