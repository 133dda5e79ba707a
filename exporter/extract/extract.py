"""From trained weights and their bundle to a model that predicts: narrow, lower, prove, and only then write."""

import hashlib
import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from edge_fl import __version__
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import TOKENIZER, Bundle
from edge_fl.core.errors import ConfigError, RunError, StateError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.width_factor import with_factor
from edge_fl.core.width_statistics import row_weights, trained_width, without_rows
from exporter.extract.card import About, Card, card_file, check_names
from exporter.extract.formats import FORMATS, Format
from exporter.extract.forward import load_forward
from exporter.extract.narrow import ByName, Narrowed, chosen_units
from exporter.extract.parity import check_file, expected_outputs, random_inputs, taken_inputs
from exporter.quiet import quiet

__all__ = ["Trained", "Wanted", "as_delivered", "check_trained", "check_wanted", "extract", "of_width"]

_SUFFIXES = (".onnx", ".pte", ".pt2")
_NO_FOLDERS = (".pt", ".pth", ".ptl", ".bin", ".safetensors", ".tflite", ".ort")
_TOOLS = ("torch", "onnx", "onnxscript", "onnxruntime", "executorch")


@dataclass(frozen=True)
class Trained:
    """What a run left: full tensors by name, and where they come from.

    ``width`` (thousandths) is that of the model trained; ``scores`` are its own after ``round`` rounds, by name.
    ``ordered`` says that its first units were trained as narrower models, too: of ``widths`` (thousandths, ascending;
    empty for any), and those of the blocks ``narrowed`` alone where these are named. ``factor`` multiplies the outputs
    of every block's layer in what is delivered.
    """

    weights: Weights
    run: str
    method: str
    round: int
    scores: Mapping[str, float] = field(default_factory=dict)
    width: int = 1000
    ordered: bool = True
    widths: tuple[int, ...] = ()
    narrowed: frozenset[str] | None = None
    factor: float = 1.0

    def statistics(self, wanted: "Wanted") -> int:
        """The width (thousandths) whose BatchNorm statistics ``wanted`` has: the full one's where blocks stay whole."""
        return wanted.width if self.narrowed is None else self.width

    def between(self, width: int) -> str:
        """The trained widths next to one that was not trained; empty for one that was, or that lies below them all."""
        below, above = [w for w in self.widths if w < width], [w for w in self.widths if w > width]
        if width in self.widths or not below:
            return ""
        return " and ".join(f"{w / 1000:g}" for w in (below[-1], *above[:1]))

    def units(self, layout: Layout, wanted: "Wanted") -> Pattern:
        """The units that ``wanted`` delivers."""
        return chosen_units(layout, self.weights, width=wanted.width, sparse=wanted.sparse, narrowed=self.narrowed)


@dataclass(frozen=True)
class Wanted:
    """What to deliver: for which runtime, which share of each block's units (thousandths), without dead units or with
    them, and what the user says of it. ``untrained`` allows a width that the method trained no model of; ``scores`` are
    what the model delivered has on ``test_data``, where they were measured.
    """

    runtime: str
    width: int = 1000
    sparse: bool = False
    class_names: tuple[str, ...] | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    untrained: bool = False
    scores: Mapping[str, float] = field(default_factory=dict)
    test_data: str | None = None


def extract(bundle: Bundle, trained: Trained, wanted: Wanted, output: Path) -> tuple[Path, Card]:
    """Write the trained model as a file, and beside it a ``.json`` that says what it is.

    Parameters
    ----------
    output
        A file name that ends as the runtime's files do, or a folder for ``model.onnx`` (``.pte``, ``.pt2``).

    Returns
    -------
    The file, and what stands beside it.

    Raises
    ------
    RuntimeMissingError
        When the runtime is unknown or not installed.
    BundleError
        When the bundle holds no forward program.
    RunError
        When the weights are not of the bundle's model, or not finite.
    ConfigError
        When class names or metadata do not fit, ``output`` ends as another runtime's files do, the width is beyond
        what was trained, or another model's ``tokenizer.json`` stands in the folder.
    UnsupportedModelError, ParityError
        When the runtime cannot run the model, or computes something else; nothing is written then.
    StateError
        When ``output`` cannot be written.
    """
    manifest = bundle.manifest
    chosen, path = check_wanted(bundle, trained, wanted, output)
    trained = as_delivered(bundle, trained)
    pattern = trained.units(bundle.layout.trained, wanted)
    statistics = trained_width(
        bundle.layout, bundle.weights(), trained.weights, manifest.statistic_widths, trained.statistics(wanted)
    )
    x = random_inputs(bundle)
    given = taken_inputs(bundle, x)
    expected = expected_outputs(bundle, pattern, trained.weights, x, width=statistics)
    with quiet():
        model: nn.Module = _narrowed(bundle, pattern, trained.weights, statistics)
        if manifest.inputs:
            model = ByName(model, manifest.inputs)
        samples = [torch.from_numpy(each) for each in given.values()]
        with torch.no_grad():
            shape = tuple(model(*samples).shape[1:])
        about = _about(bundle, trained, wanted, pattern, outputs=shape, batch=chosen.batch)
        exported = _exported(model, samples, chosen)
        data = chosen.save(exported, tuple(given), about.properties())
        parity = check_file(bundle, data, chosen, given, expected)
    card = Card(
        **msgspec.structs.asdict(about),
        file=path.name,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        parity=parity,
    )
    write_atomically(path, data)
    if manifest.tokenizer:
        write_atomically(path.with_name(TOKENIZER), bundle.read(TOKENIZER))
    write_atomically(card_file(path), msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n")
    return path, card


def check_wanted(bundle: Bundle, trained: Trained, wanted: Wanted, output: Path) -> tuple[Format, Path]:
    """The format and the file of what is ``wanted``; raises what :func:`extract` can refuse before it computes."""
    check_names(wanted.class_names, wanted.metadata, bundle.manifest.classes)
    with quiet():
        chosen = FORMATS.find(wanted.runtime)
    path = _placed(output, chosen.suffix)
    _check_tokenizer(bundle, path.with_name(TOKENIZER))
    check_trained(bundle, trained, wanted)
    return chosen, path


def _check_tokenizer(bundle: Bundle, place: Path) -> None:
    """Refuse to write a model's tokenizer over another one; StateError where it cannot be read."""
    try:
        others = bundle.manifest.tokenizer and place.exists() and place.read_bytes() != bundle.read(TOKENIZER)
    except OSError as error:
        raise StateError(f"'{place}' cannot be read: {error.strerror}.") from error
    if others:
        raise ConfigError(
            f"'{place}' is another tokenizer than the model's: remove the file, or extract into another folder."
        )


def check_trained(bundle: Bundle, trained: Trained, wanted: Wanted) -> None:
    """Refuse weights that are not of the bundle's model (RunError), and a width that was not trained (ConfigError)."""
    _check_weights(bundle, trained.weights)
    if wanted.width > trained.width:
        raise ConfigError(
            f"The run trained a model of width {trained.width / 1000:g}, and the units beyond are as they were at its "
            "start: extract that width or a narrower one."
        )
    if wanted.width < trained.width and not (trained.ordered or wanted.untrained):
        ordered = "fjord, hetlora or flexlora" if bundle.manifest.adapters else "fjord or heterofl"
        raise ConfigError(
            f"'{trained.method}' trains no narrower models, so its first units alone predict badly: extract the full "
            f"width, train with {ordered}, or insist with --untrained-width."
        )
    if trained.widths and wanted.width < trained.widths[0] and not wanted.untrained:
        raise ConfigError(
            f"The narrowest model of the method, as it was set, has width {trained.widths[0] / 1000:g}, and narrower "
            "ones predict badly: extract that width or a wider one, or insist with --untrained-width."
        )


def as_delivered(bundle: Bundle, trained: Trained) -> Trained:
    """The same with the factor in its weights, and with personal tensors as the bundle has them.

    Those that were trained are the devices' own.
    """
    weights = with_factor(bundle.manifest, {**trained.weights, **bundle.frozen.personal}, trained.factor)
    return replace(trained, weights=weights)


def _placed(output: Path, suffix: str) -> Path:
    if output.suffix in _SUFFIXES and output.suffix != suffix:
        raise ConfigError(f"'{output}' cannot be the file: this runtime's files end in '{suffix}'.")
    if output.suffix in _NO_FOLDERS:
        raise ConfigError(f"'{output}' is no name of a folder, and files end in {', '.join(_SUFFIXES)}: take one.")
    return output if output.suffix == suffix else output / f"model{suffix}"


def _check_weights(bundle: Bundle, weights: Weights) -> None:
    for tensor in bundle.layout.tensors:
        found = weights.get(tensor.name)
        if found is None or found.shape != tensor.shape:
            what = "none" if found is None else f"one of shape {found.shape}"
            raise RunError(
                f"The run was not of this bundle's model, which has a tensor '{tensor.name}' of shape {tensor.shape}, "
                f"where the run's weights hold {what}: name the bundle that was trained."
            )
        if not np.isfinite(found).all():
            raise RunError(f"The run's weights hold NaN or infinity in '{tensor.name}': its training diverged.")


def _narrowed(bundle: Bundle, pattern: Pattern, weights: Weights, width: int) -> Narrowed:
    """The kept units, with the statistics of ``width`` (thousandths) where BatchNorm has them for each."""
    return Narrowed(load_forward(bundle), *of_width(bundle, pattern, weights, width), bundle.frozen.kept(pattern))


def of_width(bundle: Bundle, pattern: Pattern, weights: Weights, width: int) -> tuple[Pattern, Weights]:
    """The same units and weights with one set of BatchNorm's statistics, those of ``width`` (thousandths)."""
    layout = bundle.layout.trained
    own = row_weights(layout, weights, bundle.manifest.statistic_widths, width)
    return Pattern(without_rows(layout), pattern.mask), own


def _exported(model: nn.Module, given: Sequence[torch.Tensor], chosen: Format) -> ExportedProgram:
    if chosen.batch is not None:
        return torch.export.export(model, tuple(each[: chosen.batch] for each in given), strict=False)
    batch = tuple({0: Dim.DYNAMIC} for _ in given)
    shapes = (batch,) if isinstance(model, ByName) else batch  # of ``*given``, which torch takes for one argument
    return torch.export.export(model, tuple(given), dynamic_shapes=shapes, strict=False)


def _about(
    bundle: Bundle,
    trained: Trained,
    wanted: Wanted,
    pattern: Pattern,
    *,
    outputs: tuple[int, ...],
    batch: int | None,
) -> About:
    manifest, layout = bundle.manifest, bundle.layout
    selection = Selection.of(pattern, "units")
    scores = dict(wanted.scores or (trained.scores if wanted.width == trained.width else {}))
    return About(
        name=manifest.name,
        dataset=manifest.dataset,
        loss=manifest.loss,
        classes=manifest.classes,
        class_names=wanted.class_names,
        input=manifest.input if not manifest.inputs else None,
        inputs=manifest.inputs or None,
        pad=manifest.tokenizer.pad if manifest.tokenizer else None,
        columns=manifest.columns or None,
        outputs=outputs,
        batch=batch,
        runtime=wanted.runtime,
        run=trained.run,
        method=trained.method,
        round=trained.round,
        width=wanted.width / 1000,
        factor=trained.factor,
        sparse=wanted.sparse,
        units=pattern.counts,
        of=dict(layout.sizes),
        parameters=sum(math.prod(selection.shape(tensor)) for tensor in layout.parameters),
        personal=tuple(tensor.name for tensor in layout.personal) or None,
        scores=scores,
        test_data=wanted.test_data if wanted.scores else None,
        layout=layout.digest,
        tools=_tools(),
        metadata=wanted.metadata,
    )


def _tools() -> dict[str, str]:
    held = {distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}
    versions = {name: importlib.metadata.version(name) for name in _TOOLS if name in held}
    return {"edge-fl": __version__, "python": platform.python_version(), **versions}
