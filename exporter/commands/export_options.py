"""What `edge-fl export` and `extract` make of their options: each a value, or one sentence."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from edge_fl.core.bundle import CLASS_INDEX, Input, Optimizer
from edge_fl.core.errors import ConfigError

if TYPE_CHECKING:
    from exporter.target import Target

__all__ = [
    "NO_DATASET",
    "parse_batch_norm",
    "parse_metadata",
    "parse_optimizer",
    "parse_shape",
    "target_for",
]

NO_DATASET = ""
"""What a bundle names where there is only a shape."""
_POLICIES = ("tracked", "per-width", "static", "frozen")


def parse_shape(text: str, option: str) -> tuple[int, ...]:
    """``3x32x32``; raises ConfigError naming ``option``."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise ConfigError(f"{option} takes a shape such as 3x32x32, without the batch, not '{text}'.")
    return tuple(int(part) for part in text.split("x"))


def parse_optimizer(name: str, momentum: float, weight_decay: float, clip_norm: float | None) -> Optimizer:
    """The optimiser; its numbers are checked with the rest of the target. Raises ConfigError on an unknown name."""
    settings = {"name": name, "momentum": momentum, "weight_decay": weight_decay, "clip": clip_norm}
    try:
        return msgspec.convert(settings, Optimizer)
    except msgspec.ValidationError as error:
        raise ConfigError(f"There is no optimizer '{name}'; there are sgd and adam.") from error


def parse_batch_norm(policy: str) -> str:
    """One of the policies; raises ConfigError."""
    if policy not in _POLICIES:
        raise ConfigError(f"There is no batch-norm policy '{policy}'; there are {', '.join(_POLICIES)}.")
    return policy


def parse_metadata(settings: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` each; raises ConfigError."""
    metadata = {}
    for setting in settings:
        key, found, value = setting.partition("=")
        if not found or not key or key in metadata:
            raise ConfigError(f"--metadata takes KEY=VALUE, each key once, not '{setting}'.")
        metadata[key] = value
    return metadata


def target_for(
    data: tuple[str | None, str | None, int | None, str | None],
    name: str,
    runtimes: tuple[str, ...],
    options: dict[str, Any],
    *,
    tokens: bool = False,
) -> "Target":
    """The target for a data set, or for bare shapes.

    Parameters
    ----------
    data
        ``--dataset``, or ``--input-shape`` with either ``--classes`` or ``--target-shape``; None where not given.
    options
        Further fields of the target.
    tokens
        Whether a bare shape is one of tokens.

    Raises
    ------
    ConfigError
        When the data are described in no way, or in two.
    DataError
        When there is no such data set.
    """
    from edge_fl.data.registry import dataset_info
    from exporter.target import Target

    dataset, input_shape, classes, target_shape = data
    if dataset is not None:
        if (input_shape, classes, target_shape) != (None, None, None) or tokens:
            raise ConfigError("A data set has shapes and classes of its own: leave --dataset or the others out.")
        return Target.of(dataset_info(dataset), name, runtimes, **options)
    if input_shape is None or (classes is None) == (target_shape is None):
        raise ConfigError(
            "What does the model fit? Give --dataset NAME, or --input-shape 3x32x32 and --classes 10, or, for float32 "
            "targets, --input-shape 16 and --target-shape 4."
        )
    sample = Input(parse_shape(input_shape, "--input-shape"), "int64" if tokens else "float32")
    if target_shape is not None:
        shape = parse_shape(target_shape, "--target-shape")
        fields = {"target": Input(shape, "float32"), "loss": "mse", **options}
        return Target(name, NO_DATASET, sample, shape[-1], runtimes, **fields)
    if classes is None or classes < 1:
        raise ConfigError(f"A classifier has at least one class, not {classes}.")
    of_each = options.get("loss") == "sequence_cross_entropy"  # a class for each position
    target = Input(sample.shape, "int64") if of_each else CLASS_INDEX
    return Target(name, NO_DATASET, sample, classes, runtimes, target=target, **options)
