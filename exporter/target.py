"""What a bundle is for: the data a model fits, how it is trained, and where its programs run."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edge_fl.core.bundle import CLASS_INDEX, PLAIN_SGD, BatchNormPolicy, Manifest, Optimizer
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.field_types import settle_fields
from edge_fl.core.inputs import Input, NamedInput
from edge_fl.data.registry import DatasetInfo
from edge_fl.metrics.base import open_metric, open_metrics
from exporter.accept import Fit
from exporter.frozen_dtype import FrozenDType
from exporter.losses import find_loss
from exporter.lower import LOWERINGS
from exporter.tokenizer_file import TokenizerFile

__all__ = ["OWN_GRADIENTS", "Target", "check_scores", "check_target"]


OWN_GRADIENTS = frozenset({"executorch_training", "ort_training"})
"""Runtimes that differentiate a batch in a way of their own."""


@dataclass(frozen=True)
class Target:
    """What a bundle is for.

    Parameters
    ----------
    name, dataset
        What the bundle and its data set are called.
    input, target
        One sample of the input and of what the loss compares the outputs with.
    classes
        Classes of the outputs, and of tokens where the input is integers.
    runtimes
        Runtimes to make programs for.
    widths
        Kept shares of each block, in thousandths, for runtimes whose programs are static
        (:func:`exporter.lower.program_widths`), and those that BatchNorm has statistics for under ``per-width``.
    batch
        Samples a training batch, for the same runtimes.
    loss
        By name, ``path/to/file.py:function``, or a function (:func:`exporter.losses.find_loss`).
    variants
        Kinds of train steps (:func:`exporter.steps.STEPS`).
    columns
        Names of the input's features, for the manifest: one a feature of a vector, or none.
    class_names, metadata
        The user's own, for the manifest: one name a class, or none.
    scores
        Metrics by name (:mod:`edge_fl.metrics`); none for what is usual for the loss.
    personal
        What each device trains and keeps to itself (:func:`exporter.personal.personal_names`).
    inputs
        Those of a model that takes several by name (:func:`exporter.named_inputs.with_named_inputs`), which ``input``
        packs; else none.
    tokenizer
        What makes texts the model's input (:func:`exporter.tokenizer_file.read_tokenizer`); None where it reads none.
    cache_features
        Whether devices compute what lies below the first trained layer once a sample (:mod:`exporter.features`).
    frozen_dtype
        What the bundle stores frozen matrices as; all but float32 rounds them (:mod:`exporter.frozen_dtype`).
    dropout
        Whether the model's own dropout trains (:mod:`exporter.dropout_places`), or nothing drops.
    micro_batch
        How many samples a step looks at together; 0 for its whole batch (:mod:`exporter.steps.micro_batches`).
    checkpoint
        Patterns of modules whose activations a step computes anew (:func:`exporter.checkpoint.checkpoint_names`).
    """

    name: str
    dataset: str
    input: Input
    classes: int
    runtimes: tuple[str, ...]
    target: Input = CLASS_INDEX
    widths: tuple[int, ...] = (1000, 800, 600, 500, 400)
    batch: int = 20
    loss: str | Callable[..., Any] = "cross_entropy"
    variants: tuple[str, ...] = ("plain",)
    optimizer: Optimizer = PLAIN_SGD
    batch_norm: BatchNormPolicy = "tracked"
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    scores: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()
    inputs: tuple[NamedInput, ...] = ()
    tokenizer: TokenizerFile | None = None
    cache_features: bool = False
    frozen_dtype: FrozenDType = "float32"
    dropout: bool = True
    micro_batch: int = 0
    checkpoint: tuple[str, ...] = ()

    @classmethod
    def of(cls, info: DatasetInfo, name: str, runtimes: tuple[str, ...], **options: Any) -> "Target":
        """A target for models of a data set; ``options`` are the other fields."""
        return cls(
            name=name,
            dataset=info.name,
            input=Input(info.input_shape, info.input_dtype),
            target=Input(info.target_shape, "int64"),
            classes=info.classes,
            runtimes=runtimes,
            **{"loss": info.loss, **options},
        )

    @cached_property
    def fit(self) -> Fit:
        """What the model must map to what; cached, as a loss of the user's is a file to run."""
        loss = find_loss(self.loss, target=self.target.dtype)
        return Fit(self.input, loss.output_shapes(self.target, self.classes), self.classes, self.inputs)


def check_target(target: Target) -> None:
    """Refuse what makes no sense whatever the model.

    Raises ConfigError, DataError for class names, and RuntimeMissingError for a runtime that there is none of.
    """
    if not target.runtimes:
        raise ConfigError("No runtime is named: a bundle needs programs for at least one.")
    for name in target.runtimes:
        LOWERINGS.check(name)
    if not target.variants:
        raise ConfigError("No train step is named: a bundle needs at least one, such as 'plain'.")
    _check_choices(target)
    _check_loss(target)
    for score in target.scores:
        open_metric(score)
    if target.columns and target.inputs:
        raise ConfigError("Inputs by name are read from columns of their names: leave the columns out.")
    if target.batch < 1:
        raise ConfigError(f"A batch must hold at least one sample, not {target.batch}.")
    if not target.widths or not all(0 < width <= 1000 for width in target.widths):
        raise ConfigError("Widths must be above 0 and at most 1, and there must be at least one.")
    if target.class_names and len(target.class_names) != target.classes:
        raise DataError(
            f"There are {len(target.class_names)} class names for {target.classes} classes: give one name a class."
        )
    if target.columns and (len(set(target.columns)),) != target.input.shape:
        raise DataError(
            f"The columns {', '.join(target.columns)[:80]} are not those of samples of shape {target.input.shape}: "
            "name each feature of a vector once."
        )
    _check_optimizer(target.optimizer)
    if target.micro_batch:
        _check_micro_batch(target)
    if target.checkpoint and (without := OWN_GRADIENTS.intersection(target.runtimes)):
        raise ConfigError(f"The runtime '{min(without)}' keeps all activations: take onnx or executorch.")


def _check_choices(target: Target) -> None:
    optimizer: object = target.optimizer
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"'optimizer' takes 'sgd', 'adam' or edge_fl.Optimizer(...), not {type(optimizer).__name__}."
        )
    for what, chosen, known in (
        ("optimizer", optimizer.name, ("sgd", "adam")),
        ("batch-norm policy", target.batch_norm, ("tracked", "per-width", "static", "frozen")),
    ):
        if chosen not in known:
            raise ConfigError(f"There is no {what} '{chosen}'; there are {', '.join(known)}.")


def check_scores(target: Target, manifest: Manifest) -> None:
    """Refuse scores that do not fit the model: ConfigError."""
    open_metrics(target.scores, manifest)


def _check_loss(target: Target) -> None:
    loss = find_loss(target.loss, target=target.target.dtype)
    if target.target.shape and not loss.positions:
        raise ConfigError(
            f"The loss '{loss.name}' compares one class a sample, and the targets are {target.target.shape}: take "
            "cross_entropy or sequence_cross_entropy."
        )
    if loss.target == "int64" and target.target.dtype == "int64" and target.classes < 2:
        raise ConfigError(
            f"The loss '{loss.name}' tells classes apart, and there is one: for one output a sample take "
            "binary_cross_entropy, with --target-shape 1 in place of --classes."
        )


def _check_micro_batch(target: Target) -> None:
    size, without = target.micro_batch, OWN_GRADIENTS.intersection(target.runtimes)
    if size < 1 or target.batch % size or size == target.batch:
        raise ConfigError(
            f"Micro-batches of {size} samples do not divide a batch of {target.batch}: change --batch."
        )
    if without:
        raise ConfigError(f"The runtime '{min(without)}' has no micro-batches: take onnx or executorch.")
    if "vardrop" in target.variants:
        raise ConfigError("The train step 'vardrop' has no micro-batches, as its divergence is of the whole step.")


def _check_optimizer(optimizer: Optimizer) -> None:
    settle_fields(optimizer)
    if not 0 <= optimizer.momentum < 1:
        raise ConfigError(f"Momentum must be at least 0 and below 1, not {optimizer.momentum}.")
    if optimizer.momentum and optimizer.name == "adam":
        raise ConfigError("Momentum is SGD's: Adam has its own, so leave it out or choose sgd.")
    if not (optimizer.weight_decay >= 0 and math.isfinite(optimizer.weight_decay)):
        raise ConfigError(f"Weight decay must be a number of at least 0, not {optimizer.weight_decay}.")
    if optimizer.clip is not None and not (optimizer.clip > 0 and math.isfinite(optimizer.clip)):
        raise ConfigError(f"The norm that gradients are clipped to must be above 0, not {optimizer.clip}.")
