"""What `edge-fl export` and `extract` make of their options: each a value, or one sentence."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from edge_fl.core.bundle import CLASS_INDEX
from edge_fl.core.errors import ConfigError
from edge_fl.core.inputs import Input, NamedInput, packed_input

if TYPE_CHECKING:
    from exporter.target import Target

__all__ = [
    "NO_DATASET",
    "parse_input",
    "parse_metadata",
    "parse_shape",
    "target_for",
]

NO_DATASET = ""
"""What a bundle names where there is only a shape."""
_SHAPE = r"[1-9]\d*(x[1-9]\d*)*"
_DTYPES = ("float32", "int64", "bool")


def parse_shape(text: str, option: str) -> tuple[int, ...]:
    """``3x32x32``; raises ConfigError naming ``option``."""
    if not re.fullmatch(_SHAPE, text):
        raise ConfigError(f"{option} takes a shape such as 3x32x32, without the batch, not '{text}'.")
    return tuple(int(part) for part in text.split("x"))


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
    inputs: Sequence[str] = (),
) -> "Target":
    """The target for a data set, or for bare shapes.

    Parameters
    ----------
    data
        ``--dataset``, or ``--input-shape`` with ``--classes``, ``--target-shape`` or both; None where not given.
    options
        Further fields of the target.
    tokens
        Whether a bare shape is one of tokens.
    inputs
        In place of a bare shape, ``--input`` each (:func:`parse_input`).

    Raises
    ------
    ConfigError
        When the data are described in no way, or in two.
    DataError
        When there is no such data set.
    """
    from edge_fl.data.registry import dataset_info
    from exporter.losses import find_loss
    from exporter.target import Target

    dataset, input_shape, classes, target_shape = data
    if dataset is not None:
        if (input_shape, classes, target_shape) != (None, None, None) or tokens or inputs:
            raise ConfigError("A data set has shapes and classes of its own: leave --dataset or the others out.")
        return Target.of(dataset_info(dataset), name, runtimes, **options)
    named = tuple(map(parse_input, inputs))
    if named and (input_shape is not None or tokens):
        raise ConfigError(
            "Inputs by name have shapes of their own: leave --input-shape and --tokens out, or --input."
        )
    if (input_shape is None and not named) or (classes is None and target_shape is None):
        raise ConfigError(
            "What does the model fit? Give --dataset NAME, or --input-shape 3x32x32 and --classes 10, or, for float32 "
            "targets, --input-shape 16 and --target-shape 4, or both for a class a pixel; or --input NAME:SHAPE for "
            "each of several inputs."
        )
    sample = _sample(input_shape, named, tokens=tokens)
    options = {"inputs": named, **options}
    shape = None if target_shape is None else parse_shape(target_shape, "--target-shape")
    if classes is None and shape is not None:
        fields = {"target": Input(shape, "float32"), "loss": "mse", **options}
        return Target(name, NO_DATASET, sample, shape[-1], runtimes, **fields)
    if classes is None or classes < 1:
        raise ConfigError(f"A classifier has at least one class, not {classes}.")
    if shape is not None:
        if find_loss(options.get("loss", "cross_entropy")).target == "float32":
            raise ConfigError("The loss compares numbers: give --target-shape without --classes.")
        return Target(name, NO_DATASET, sample, classes, runtimes, target=Input(shape, "int64"), **options)
    of_each = options.get("loss") in ("sequence_cross_entropy", "padded_sequence_cross_entropy")
    positions = next((each.shape for each in named if each.name == "input_ids"), sample.shape)
    target = Input(positions, "int64") if of_each else CLASS_INDEX
    return Target(name, NO_DATASET, sample, classes, runtimes, target=target, **options)


def _sample(shape: str | None, named: Sequence[NamedInput], *, tokens: bool) -> Input:
    if shape is not None:
        return Input(parse_shape(shape, "--input-shape"), "int64" if tokens else "float32")
    try:
        return packed_input(named)
    except ValueError as error:
        raise ConfigError(f"The inputs of --input cannot be: {error}.") from error


def parse_input(text: str) -> NamedInput:
    """``NAME:SHAPE:DTYPE``, either of the two left out where it is one number, or float32; raises ConfigError."""
    name, *parts = text.split(":")
    dtype, *rest = [part for part in parts if part in _DTYPES] or ["float32"]
    shapes = [part for part in parts if part not in _DTYPES]
    if rest or len(shapes) > 1 or not all(re.fullmatch(_SHAPE, shape) for shape in shapes):
        raise ConfigError(
            f"--input takes NAME:SHAPE:DTYPE, such as input_ids:64:int64, with {', '.join(_DTYPES)}, not '{text}'."
        )
    shape = parse_shape(shapes[0], "--input") if shapes else ()
    try:
        return NamedInput(name, shape, cast('Literal["float32", "int64", "bool"]', dtype))
    except ValueError as error:
        raise ConfigError(f"--input {text}: {error}.") from error
