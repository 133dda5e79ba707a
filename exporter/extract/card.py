"""What the user of a delivered model needs to know of it; ``model.onnx.json`` beside ``model.onnx``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.core.inputs import Input, NamedInput

__all__ = ["About", "Card", "card_file", "check_names"]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before the file is made, and travels in it where it has a place.

    Parameters
    ----------
    name, dataset, loss, classes
        As the bundle has them; the outputs are what the loss was computed from, so unnormalised.
    class_names
        One a class, in their order; None where nobody gave them.
    input
        One sample, without the batch axis; None where there are several inputs.
    inputs
        Several inputs by name, in the file's order; None where there is one, which is called ``x``.
    pad
        The token that texts are padded with, where a ``tokenizer.json`` stands beside the file; else None.
    columns
        Names of its features, in order; None where nobody gave them.
    outputs
        Shape of one sample's outputs, float32.
    batch
        Samples that the file takes at a time; None for any number.
    run, method, round
        What trained it, and for how many rounds.
    width, sparse, factor
        The share of each block's first units; whether those that are exactly zero were left out; what multiplies the
        outputs of every block's layer, in the file's weights already.
    units, of
        Units kept in each block, and units there.
    parameters
        Numbers that were trained, in the model.
    personal
        Tensors that are as exported, since each device trained its own; None where there are none.
    scores
        What this model has on the run's test data as it is now, by name. Where those are not at hand, what it had in
        the run. None where there are none.
    test_data
        The data as they are now: a source as `--test-data` takes it, or a test split in words. None where the scores
        are the run's.
    metadata
        The user's own.
    """

    name: str
    dataset: str
    loss: str
    classes: int
    class_names: tuple[str, ...] | None
    input: Input | None
    inputs: tuple[NamedInput, ...] | None
    pad: int | None
    columns: tuple[str, ...] | None
    outputs: tuple[int, ...]
    batch: int | None
    runtime: str
    run: str
    method: str
    round: int
    width: float
    sparse: bool
    factor: float
    units: dict[str, int]
    of: dict[str, int]
    parameters: int
    personal: tuple[str, ...] | None
    scores: dict[str, float]
    test_data: str | None
    layout: str
    tools: dict[str, str]
    metadata: dict[str, str]

    def properties(self) -> dict[str, str]:
        """Every field that has a value by its name, JSON but for strings, and the user's own by theirs."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        held = {n: v for n, v in fields.items() if v is not None and n != "metadata"}
        return {n: v if isinstance(v, str) else json.dumps(v) for n, v in held.items()} | self.metadata


class Card(About, frozen=True, kw_only=True):
    """What the file of :func:`card_file` holds.

    Parameters
    ----------
    file, sha256, size
        The model's file beside it, and what it must be (hex digits, bytes).
    parity
        The largest difference of any output from that of the bundle's evaluation program, over the largest output.
    """

    file: str
    sha256: str
    size: int
    parity: float


def check_names(class_names: tuple[str, ...] | None, metadata: Mapping[str, str], classes: int) -> None:
    """Refuse class names that are not one a class, and metadata under a name of :class:`Card`'s: ConfigError."""
    if class_names is not None and len(class_names) != classes:
        raise ConfigError(
            f"There are {len(class_names)} class names for {classes} classes: give one a line for each."
        )
    taken = sorted(metadata.keys() & set(Card.__struct_fields__))
    if taken:
        raise ConfigError(f"The metadata '{taken[0]}' is what edge-fl itself says of a model: choose another key.")


def card_file(model: Path) -> Path:
    """Where the card of the delivered file ``model`` lies: models of one name in several formats have one each."""
    return model.with_name(f"{model.name}.json")
