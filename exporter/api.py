"""``edge_fl.export``: a model in memory to a bundle on disk."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from edge_fl.core.bundle import BatchNormPolicy, Bundle, Optimizer
from edge_fl.core.errors import ConfigError, ModelError, said
from edge_fl.core.inputs import Input
from edge_fl.core.option_lists import names_given
from edge_fl.core.share import parse_width
from exporter.export import export_bundle
from exporter.fine_tuning import train_only
from exporter.losses import Loss, find_loss, first_is_usual, try_loss
from exporter.named_inputs import with_example_inputs
from exporter.normalise import with_normalised_input
from exporter.one_pass import one_pass
from exporter.own_outputs import Several, predictions, with_plain_outputs
from exporter.target import Target
from exporter.tokenizer_file import read_tokenizer
from exporter.wrapped import unwrapped

__all__ = ["export"]


def export(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss: str | Callable[..., torch.Tensor] = "cross_entropy",
    runtimes: Sequence[str] = ("onnx",),
    output: str | Path = "bundle",
    name: str | None = None,
    target: Literal["float32", "int64"] | None = None,
    widths: Sequence[float] = (1.0, 0.8, 0.6, 0.5, 0.4),
    batch: int = 20,
    variants: Sequence[str] = ("plain",),
    optimizer: Literal["sgd", "adam"] | Optimizer = "sgd",
    batch_norm: BatchNormPolicy = "tracked",
    columns: Sequence[str] = (),
    class_names: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
    scores: Sequence[str] = (),
    train: Sequence[str] = (),
    personal: Sequence[str] = (),
    dropout: bool = True,
    normalise: tuple[Sequence[float], Sequence[float]] | None = None,
    channel_axis: int = 0,
    tokenizer: str | Path | None = None,
    cache_features: bool = False,
    frozen_dtype: Literal["float32", "float16", "int8"] = "float32",
    micro_batch: int = 0,
    checkpoint: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Write the bundle of a model with the weights that it has now, proven equal to torch in every runtime.

    Parameters
    ----------
    model
        In training mode, as it is to be trained. What ``torch.compile`` or ``DataParallel`` wrapped is unwrapped.
    example_inputs
        ``[B, ...]``, a tensor or an array: a batch of samples, float32, int64 tokens or uint8 pixels, which become
        float32. Values do not matter. Of a model of several inputs a dict of them by the names of ``forward``, as a
        tokenizer of Hugging Face gives it.
    loss
        A name such as ``cross_entropy``, ``sequence_cross_entropy``, ``mse`` or ``huber``, or ``file.py:function``; or
        a function of outputs and targets that gives one value a sample, ``[B]``.
    runtimes
        As ``edge-fl export --runtime`` names them.
    output
        The bundle's folder.
    target
        The dtype of targets, of a loss of your own; others know theirs.
    widths
        Kept shares of each block in (0, 1], for runtimes whose programs are static.
    optimizer
        ``sgd``, ``adam``, or an :class:`edge_fl.Optimizer` with momentum, weight decay or a clip of gradients.
    columns
        Names of the features of a vector: tables are read in this order, whatever theirs is.
    scores
        Metrics that a run computes unless told otherwise.
    train
        What is trained, such as ``["head.*"]`` or ``["lora:q_proj,v_proj:r=8"]``
        (:func:`exporter.fine_tuning.train_only`); the rest is frozen. None: what the model does not freeze.
    personal
        What each device trains and keeps to itself, such as ``["head.*"]`` (:func:`exporter.personal.personal_names`).
    dropout
        False sets the model's own dropout to 0.
    normalise
        Means and standard deviations of the input's channels: the programs compute on ``(x - mean) / std``
        (:func:`exporter.normalise.with_normalised_input`).
    channel_axis
        Of a sample: 0, or -1 for series of features.
    tokenizer
        A ``tokenizer.json``, or a folder that has one: devices then give texts
        (:func:`exporter.tokenizer_file.read_tokenizer`).
    cache_features
        Whether devices compute once a sample what lies below the first trained layer, and keep it.
    frozen_dtype
        What the bundle stores frozen matrices as: float16 halves what a device fetches, int8 quarters it (whole
        numbers of each row, times a scale); both round the model.
    micro_batch
        Samples that a step looks at together, which divide ``batch``: gradients are summed, and a step takes less
        memory. 0 for the whole batch.
    checkpoint
        Modules whose activations a step computes a second time for its backward pass, such as ``["layers.*"]``
        (:func:`exporter.checkpoint.checkpoint_names`): less memory, and about a third more time.
    progress
        Told of each stage.

    Raises
    ------
    EdgeFLError
        As :func:`exporter.export.export_bundle`; nothing is written then.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"A {type(model).__name__} is no model: give a torch.nn.Module, such as a function's result."
        )
    model = unwrapped(model)
    shares = tuple(widths) if isinstance(widths, Iterable) else ()
    if not shares or not all(isinstance(share, Real) for share in shares):
        raise ConfigError(f"'widths' takes a list of numbers, such as [1, 0.5], not {widths!r}.")
    counts: Mapping[str, object] = {"batch": batch, "micro_batch": micro_batch}
    for option, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise ConfigError(f"'{option}' is a number of samples, such as 20, not {count!r}.")
    model, sample, inputs = with_example_inputs(model, example_inputs)
    taken = Input(tuple(sample.shape[1:]), "float32" if sample.is_floating_point() else "int64")
    if target not in (None, "int64", "float32"):
        raise ConfigError(f"There is no dtype of targets '{target}'; there are int64 and float32.")
    found = find_loss(loss, target=target or "int64")
    targets, classes = _targets(with_plain_outputs(model, sample, found.outputs), sample, found)
    model = train_only(model, names_given("train", train))
    if normalise is not None and inputs:
        raise ConfigError("A model of several inputs normalises them itself: leave the normalisation out.")
    if normalise is not None:
        model = with_normalised_input(model, *normalise, taken, axis=channel_axis)
    return export_bundle(
        model,
        Target(
            name=name or type(model).__name__.lower(),
            dataset="",
            input=taken,
            target=targets,
            classes=classes,
            runtimes=tuple(runtime.replace("-", "_") for runtime in names_given("runtimes", runtimes)),
            widths=tuple(parse_width(share) for share in shares),
            batch=int(batch),
            loss=loss,
            variants=names_given("variants", variants),
            optimizer=Optimizer(optimizer) if isinstance(optimizer, str) else optimizer,
            batch_norm=batch_norm,
            columns=names_given("columns", columns),
            class_names=names_given("class_names", class_names),
            metadata=dict(metadata or {}),
            scores=names_given("scores", scores),
            personal=names_given("personal", personal),
            inputs=inputs,
            cache_features=cache_features,
            frozen_dtype=frozen_dtype,
            dropout=dropout,
            micro_batch=int(micro_batch),
            checkpoint=names_given("checkpoint", checkpoint),
            tokenizer=None if tokenizer is None else read_tokenizer(Path(tokenizer)),
        ),
        Path(output),
        report=progress,
    )


def _targets(model: nn.Module, sample: torch.Tensor, loss: Loss) -> tuple[Input, int]:
    """What a sample's target is, and how many classes there are, as the outputs and the loss have it."""
    outputs = _outputs(model, sample)
    if loss.target == "float32":
        return Input(outputs, "float32"), outputs[-1]
    last, first = (Input(outputs[:-1], "int64"), outputs[-1]), (Input(outputs[1:], "int64"), outputs[0])
    if loss.classes is None:  # a loss of the user's takes the one or the other
        usual, other = (first, last) if first_is_usual(first[0]) else (last, first)
        return usual if _takes(loss, model, sample, usual[0]) else other
    tokens = not sample.is_floating_point() and outputs[:-1] == tuple(sample.shape[1:])
    if loss.classes == "first" and tokens:
        raise ConfigError(
            f"The model gives {outputs} for {outputs[0]} tokens, a class for each: take loss='sequence_cross_entropy'."
        )
    return first if loss.classes == "first" else last


def _takes(loss: Loss, model: nn.Module, sample: torch.Tensor, target: Input) -> bool:
    try:
        try_loss(loss, model, sample, target)
    except ModelError:
        return False
    return True


def _batch_hint(model: nn.Module, sample: torch.Tensor) -> str:
    """What to do about example inputs that were one sample, without an axis for the batch."""
    batch = torch.stack([sample, sample])  # BatchNorm takes no single one
    try:
        given = one_pass(model, batch)
    except Exception:  # as above
        return ""
    if not isinstance(given, torch.Tensor) or given.ndim < 2 or len(given) != len(batch):
        return ""
    return f" Where they lack the axis of the batch, give [B, {', '.join(map(str, sample.shape))}]."


def _outputs(model: nn.Module, sample: torch.Tensor) -> tuple[int, ...]:
    """The shape of what the model gives for one sample, without the batch axis."""
    try:
        given = one_pass(model, sample)
    except Exception as error:  # a model of the user's may raise anything
        raise ModelError(
            f"The model does not take the example inputs {tuple(sample.shape)}: {said(error)}."
            f"{_batch_hint(model, sample)}"
        ) from error
    given = predictions(given) if isinstance(given, Several) else given
    if not isinstance(given, torch.Tensor) or given.ndim < 2 or len(given) != len(sample):
        shown = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
        raise ModelError(
            f"The model gives {shown}, not one tensor [B, ...] for the {len(sample)} example inputs."
            f"{_batch_hint(model, sample)}"
        )
    return tuple(np.array(given.shape[1:]).tolist())
