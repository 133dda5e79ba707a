"""From a model to a bundle: accept, derive, trace, lower, prove, and only then write."""

import importlib.metadata
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.numpy
from torch import nn

from edge_fl.bundle import (
    CLASS_INDEX,
    PLAIN_SGD,
    SCHEMA,
    WEIGHTS,
    Bundle,
    Input,
    Manifest,
    Optimizer,
    Parity,
    Program,
)
from edge_fl.data.registry import DatasetInfo
from edge_fl.errors import ConfigError
from exporter.accept import Fit, accept, example_inputs
from exporter.adapt import adapt
from exporter.derive import Derivation, derive
from exporter.extract.forward import FORWARD, save_forward
from exporter.forward import build_evaluation
from exporter.losses import find_loss
from exporter.lower import Lowered, Report, Request, kept_at, lower_for
from exporter.parity import check_parity
from exporter.source import Source
from exporter.steps import build_step

__all__ = ["Target", "check_model", "export_bundle"]

_TOOLS = (
    "edge-fl",
    "torch",
    "torch-pruning",
    "numpy",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "executorch",
    "torchao",
)


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
        Kept shares of each block, in thousandths, for runtimes whose programs are static.
    batch
        Samples a training batch, for the same runtimes.
    """

    name: str
    dataset: str
    input: Input
    classes: int
    runtimes: tuple[str, ...]
    target: Input = CLASS_INDEX
    widths: tuple[int, ...] = (1000, 800, 600, 500, 400)
    batch: int = 20
    loss: str = "cross_entropy"
    variants: tuple[str, ...] = ("plain",)
    optimizer: Optimizer = PLAIN_SGD
    batch_norm: Literal["tracked", "static", "frozen"] = "tracked"

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

    @property
    def fit(self) -> Fit:
        """What the model must map to what."""
        outputs = self.target.shape if self.target.dtype == "float32" else (*self.target.shape, self.classes)
        return Fit(self.input, outputs, self.classes)


def check_model(model: nn.Module, fit: Fit) -> Derivation:
    """What would be masked and what would stay dense; raises as :func:`export_bundle` does, and writes nothing."""
    accept(model, fit)
    return derive(model, example_inputs(fit, 3))


def export_bundle(model: nn.Module, target: Target, root: Path, *, report: Report = lambda _: None) -> Bundle:
    """Write the bundle of a model with the weights it has now.

    Parameters
    ----------
    model
        In training mode, as it is to be trained.
    root
        The folder to write; untouched when anything fails.
    report
        Told of each stage.

    Raises
    ------
    UnsupportedModelError, ModelError, DataError
        When the model cannot be exported or does not fit ``target``.
    RuntimeMissingError
        When a runtime is unknown or not installed here.
    ParityError
        When a program does not compute what torch computes.
    ConfigError, BundleError
        When ``target`` makes no sense, or ``root`` cannot be written.
    """
    report("reading the model")
    found = check_model(model, target.fit)
    _check_target(target, found)
    source = _source(model, target, found)
    steps = tuple(build_step(variant, source) for variant in target.variants)
    request = Request(steps, build_evaluation(source), target.widths, target.batch)
    lowered = lower_for(target.runtimes, request, report)
    files = {program.file: data for programs in lowered.values() for program, data in programs}
    files[WEIGHTS] = _weights(model, found)
    report("forward program")
    files[FORWARD] = save_forward(source)
    manifest = _manifest(target, source, found, lowered)
    parity: dict[str, Parity] = {}
    with tempfile.TemporaryDirectory() as scratch:
        unproven = Bundle.save(Path(scratch), manifest, files)
        for runtime in target.runtimes:
            report(f"{runtime}: comparing with torch")
            parity[runtime] = check_parity(source, unproven, runtime, widths=target.widths, batch=target.batch)
    report("writing")
    return Bundle.save(root, _manifest(target, source, found, lowered, parity), files)


def _check_target(target: Target, found: Derivation) -> None:
    if not target.runtimes:
        raise ConfigError("No runtime is named: a bundle needs programs for at least one.")
    if target.batch < 1:
        raise ConfigError(f"A batch must hold at least one sample, not {target.batch}.")
    if not target.widths or not all(0 < width <= 1000 for width in target.widths):
        raise ConfigError("Widths must be above 0 and at most 1, and there must be at least one.")
    for width in target.widths:
        empty = [name for name, kept in kept_at(found.layout, width).items() if kept == 0]
        if empty:
            raise ConfigError(f"Width {width / 1000:g} keeps no unit of block '{empty[0]}': choose a larger one.")


def _source(model: nn.Module, target: Target, found: Derivation) -> Source:
    loss = find_loss(target.loss, target=target.target.dtype)
    if loss.target != target.target.dtype:
        raise ConfigError(
            f"The loss '{loss.name}' compares with {loss.target}, and the targets of '{target.dataset}' are "
            f"{target.target.dtype}: choose another loss."
        )
    normalised = any(tensor.role == "statistic" for tensor in found.layout.tensors)
    return Source(
        module=adapt(model, batch_norm=target.batch_norm).train(),
        original=model,
        layout=found.layout,
        scaled=found.scaled,
        loss=loss,
        input=target.input,
        target=target.target,
        classes=target.classes,
        optimizer=target.optimizer,
        batch_norm=target.batch_norm if normalised else "none",
    )


def _weights(model: nn.Module, found: Derivation) -> bytes:
    held = model.state_dict()
    arrays = {tensor.name: held[tensor.name].numpy().copy() for tensor in found.layout.tensors}
    return safetensors.numpy.save(arrays)


def _manifest(
    target: Target,
    source: Source,
    found: Derivation,
    lowered: dict[str, Lowered],
    parity: dict[str, Parity] | None = None,
) -> Manifest:
    programs: dict[str, tuple[Program, ...]] = {
        runtime: tuple(program for program, _ in held) for runtime, held in lowered.items()
    }
    return Manifest(
        schema=SCHEMA,
        name=target.name,
        dataset=target.dataset,
        classes=target.classes,
        input=target.input,
        target=target.target,
        loss=source.loss.name,
        layout=found.layout,
        optimizer=target.optimizer,
        batch_norm=source.batch_norm,
        programs=programs,
        parity=parity or {},
        tools=_tools(),
        notes=tuple(f"'{layer}' stays dense: {reason}." for layer, reason in found.dense.items()),
    )


def _tools() -> dict[str, str]:
    tools = {"python": platform.python_version()}
    for name in _TOOLS:
        try:
            tools[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a compiler that was not needed
    return tools
