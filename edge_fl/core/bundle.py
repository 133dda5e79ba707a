"""The bundle: a folder with manifest, weights and one set of programs per runtime; written once, verified always.

::

    manifest.sha256               the manifest's own checksum, as `sha256sum` writes it
    manifest.json                 everything below, by name, size and SHA-256
    weights.safetensors           the initial weights (the coordinator's; devices get models as frames)
    onnx/step.onnx ...            programs, one folder per runtime
"""

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.adapters import adapters_of
from edge_fl.core.atomic import write_atomically
from edge_fl.core.content import LARGEST, is_digest
from edge_fl.core.dropout import Dropout
from edge_fl.core.errors import BundleError
from edge_fl.core.frozen import FROZEN, FrozenTensors, frozen_size
from edge_fl.core.inputs import Input, NamedInput, packed_input
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.unreadable import UNREADABLE

__all__ = [
    "CLASS_INDEX",
    "FILLED",
    "FROZEN_TENSOR",
    "LABEL_MASK",
    "MANIFEST",
    "NEW",
    "PLAIN_SGD",
    "SCHEMA",
    "SEAL",
    "TENSOR",
    "TOKENIZER",
    "WEIGHTS",
    "WHOLE_BATCHES",
    "BatchNormPolicy",
    "Bundle",
    "Cost",
    "File",
    "Manifest",
    "Optimizer",
    "Parity",
    "Program",
    "Tokenizer",
    "parse_manifest",
    "seal_of",
    "slot_name",
]

SCHEMA = 3
_READERS = {1: "0.1", 2: "0.1"}  # which edge-fl reads an older schema
MANIFEST = "manifest.json"
SEAL = "manifest.sha256"
WEIGHTS = "weights.safetensors"
FILLED = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""What a tokenizer fills of a model's inputs, by the names that Hugging Face gives them."""
TOKENIZER = "tokenizer.json"
"""The file that says how texts become tokens, as Hugging Face's library ``tokenizers`` writes it."""
TENSOR = "tensor."
"""What a program's ports of the model's tensors are called, before the tensor's name."""
FROZEN_TENSOR = "frozen."
"""What a program's ports of frozen tensors are called, before the tensor's name."""
NEW = "new."
"""What a step's outputs are called that are an input anew, before the input's name."""
LABEL_MASK = "label_mask"
"""What a step takes where its loss can leave out classes: ``[classes]``, 0 for those a client has no samples of."""
BatchNormPolicy = Literal["none", "tracked", "static", "frozen", "per-width"]
"""How BatchNorm is trained; ``none`` where a model has none."""
WHOLE_BATCHES: frozenset[BatchNormPolicy] = frozenset({"tracked", "static", "per-width"})
"""Where training normalises by the batch, so that no batch may be padded."""
_STEP = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"  # of a path: no "..", nothing hidden, nothing a file system objects to
_PATH = re.compile(rf"{_STEP}(/{_STEP})*")


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file of the bundle must be: its SHA-256 in hex and its size in bytes."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        if not is_digest(self.sha256) or not 0 <= self.size <= LARGEST:
            raise ValueError("a file needs a SHA-256 of 64 hex digits and a size of 0 to 2**32")


class Tokenizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How texts become tokens: by the file :data:`TOKENIZER`, and ``pad`` where a text is shorter than a sample."""

    pad: int

    def __post_init__(self) -> None:
        if not 0 <= self.pad < 2**31:
            raise ValueError("a token is 0 to 2^31 - 1")


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One program file.

    ``kept`` and ``batch`` are what a static program was compiled for; None stands for any. Batches are multiples of
    ``micro_batch``. ``inputs`` and
    ``outputs`` name its arrays in order: ``tensor.NAME`` for the kept entries of a tensor of the layout,
    ``frozen.NAME`` for those of one that is never trained,
    ``SLOT.NAME`` for the optimiser's state of them (:func:`slot_name`), ``x``, ``y``, ``sample_weight``, ``lr``,
    ``scale``, ``width`` (:mod:`edge_fl.core.width_statistics`) and so on; ``new.INPUT`` is what a step makes of an
    input.
    """

    file: str
    kind: Literal["step", "eval", "features"]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variant: str = "plain"
    kept: dict[str, int] | None = None
    batch: int | None = None
    micro_batch: int = 1

    def __post_init__(self) -> None:
        if self.micro_batch < 1:
            raise ValueError("a program takes at least one sample at a time")


class Optimizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a step turns gradients into new weights, as torch.optim's SGD and Adam do; its numbers are compiled in.

    Parameters
    ----------
    momentum
        Of SGD: ``m = momentum * m + g; w = w - lr * m``.
    weight_decay
        Adds ``weight_decay * w`` to every gradient.
    clip
        The largest norm of all gradients together, before weight decay (torch's ``clip_grad_norm_``); None for any.
    betas, eps
        Of Adam.
    """

    name: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        """What it remembers of each parameter from step to step, zero at the start of a round."""
        if self.name == "adam":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum",) if self.momentum else ()


def slot_name(slot: str, trained: str) -> str:
    """What a step calls the optimiser's ``slot`` of one of its trained inputs.

    ``SLOT.NAME`` of ``tensor.NAME``, and ``SLOT_KIND.NAME`` of any other ``KIND.NAME``: what follows the first dot is
    always the tensor of the layout whose entries they are.
    """
    kind, _, name = trained.partition(".")
    return f"{slot}.{name}" if kind == "tensor" else f"{slot}_{kind}.{name}"


class Parity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the exporter measured: the largest absolute difference of any weight from torch eager after ``steps``
    steps with a new pattern each, and of any evaluation output.
    """

    steps: int
    weights: float
    outputs: float


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model costs at a width, as the exporter counted it.

    Parameters
    ----------
    width
        Kept share of each block, in thousandths.
    parameters
        Trained numbers of the compact model; a tensor used twice counts once.
    macs
        Multiply-accumulates of one sample's forward pass; None where the model's layers do not run at that width as
        they stand (unequally wide layers of one recurrent module).
    """

    width: int
    parameters: int
    macs: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.width <= 1000 or self.parameters < 0 or (self.macs or 0) < 0:
            raise ValueError("a cost needs a width of 1 to 1000 thousandths and counts of at least 0")


_MOST_AT_A_TIME = 1 << 16
MOST_CLASSES = 1 << 24
MOST_NAME = 256
"""Characters of a column's name."""
CLASS_INDEX = Input((), "int64")
"""The target of a classifier: one class a sample."""
PLAIN_SGD = Optimizer()


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a coordinator or a device needs to know of a model.

    ``momenta`` say of each statistic that steps bring up to date how far towards the batch's own one step moves it.

    ``statistic_widths`` (thousandths) are those that BatchNorm has statistics for, in the order of their rows; none
    unless the policy is ``per-width``. ``output_noise`` is what the noise on layers' outputs looks like that a step
    ``vardrop`` takes: the shape of one sample and its axes, by the name of the layer's weight. ``costs`` come widest
    first. ``dropout`` are the places where the model itself drops, whose masks every step takes.
    ``scaled`` are the parameters that, multiplied by a factor, multiply the outputs of every block's layer; none where
    that takes more than parameters.
    ``adapters`` are the gains (alpha over rank) of low-rank adapters, by the layer that each is beside.
    ``vocabulary`` is how many tokens the input may be of (0: it is none, or nobody knows).
    ``inputs`` are those of a model that takes several by name, in the order in which they stand in ``input``.
    ``tokenizer`` is that of a model of texts, whose file is in the bundle. ``features`` are what steps and evaluation
    take in place of ``input``, where these are made of it once a sample, by a program of that kind.
    ``columns`` (one a feature of a vector, or none at all) are those of a table that the input is read from, in
    order. ``class_names`` (one a class, or none at all) and ``metadata`` are the user's own and mean nothing to
    training. ``dataset`` is empty where the bundle was made for shapes alone, ``scores`` are the metrics wanted (none:
    what is usual for the loss).
    """

    schema: int
    name: str
    dataset: str
    classes: int
    input: Input
    target: Input
    loss: str
    layout: Layout
    programs: dict[str, tuple[Program, ...]]
    parity: dict[str, Parity]
    tools: dict[str, str]
    optimizer: Optimizer = PLAIN_SGD
    batch_norm: BatchNormPolicy = "none"
    statistic_widths: tuple[int, ...] = ()
    output_noise: tuple[Tensor, ...] = ()
    dropout: tuple[Dropout, ...] = ()
    momenta: dict[str, float] = {}
    costs: tuple[Cost, ...] = ()
    scaled: tuple[str, ...] = ()
    adapters: dict[str, float] = {}
    vocabulary: int = 0
    inputs: tuple[NamedInput, ...] = ()
    tokenizer: Tokenizer | None = None
    features: Input | None = None
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    scores: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: dict[str, File] = {}

    def __post_init__(self) -> None:
        if not 0 <= self.classes <= MOST_CLASSES:
            raise ValueError(f"a model has 0 to {MOST_CLASSES} classes")
        if not 0 <= self.vocabulary < 2**31:
            raise ValueError("a vocabulary has 0 to 2^31 - 1 tokens")
        for program in (p for programs in self.programs.values() for p in programs if p.kind == "features"):
            _check_features(program, self.layout)
        if self.tokenizer is not None:
            _check_texts(self.input, self.inputs)
        if self.inputs and packed_input(self.inputs) != self.input:
            raise ValueError(f"{len(self.inputs)} inputs are not those of a sample of shape {self.input.shape}")
        if any(not 1 <= width <= 1000 for width in self.statistic_widths):
            raise ValueError("a width is 1 to 1000 thousandths")
        if self.class_names and len(self.class_names) != self.classes:
            raise ValueError(f"{self.classes} classes have {len(self.class_names)} names")
        if self.columns and (len(self.columns),) != self.input.shape:
            raise ValueError(f"an input of shape {self.input.shape} has {len(self.columns)} columns")
        if len(set(self.columns)) != len(self.columns) or any(len(name) > MOST_NAME for name in self.columns):
            raise ValueError(f"columns have names of up to {MOST_NAME} characters, each its own")
        known = adapters_of(self.layout.trained)
        for layer, gain in self.adapters.items():
            if layer not in known or not known[layer].fits or not 0 < gain < math.inf:
                raise ValueError("an adapter has two tensors of one rank, and a gain above 0")
        Layout(self.layout.blocks, tuple(place.mask for place in self.dropout))  # masks are of its blocks
        _check_scaled(self.scaled, self.layout)
        rows = {tensor.shape[0] for tensor in self.layout.trained.tensors if tensor.per_width}
        wanted = {len(self.statistic_widths)} - {0}
        if rows != wanted or bool(rows) != (self.batch_norm == "per-width"):
            raise ValueError(f"its tensors are not those of statistics for {len(self.statistic_widths)} widths")

    def step_program(
        self, runtime: str, variant: str, counts: Mapping[str, int], batch: int | None
    ) -> Program | None:
        """The program of ``runtime`` that trains ``counts`` kept units a block on ``batch`` samples, if any.

        None for ``batch`` asks for one that takes more than one number of them.
        """
        for program in self.programs.get(runtime, ()):
            fits = program.kept in (None, dict(counts)) and program.batch in (None, batch)
            fits = fits and (batch or 0) % program.micro_batch == 0
            if (program.kind, program.variant) == ("step", variant) and fits:
                return program
        return None

    @property
    def masks_labels(self) -> bool:
        """Whether steps take :data:`LABEL_MASK`."""
        return any(LABEL_MASK in program.inputs for programs in self.programs.values() for program in programs)

    def eval_program(self, runtime: str) -> Program | None:
        """The evaluation program of ``runtime``, if any."""
        return next((p for p in self.programs.get(runtime, ()) if p.kind == "eval"), None)

    def features_program(self, runtime: str) -> Program | None:
        """The program of ``runtime`` that makes features, if any."""
        return next((p for p in self.programs.get(runtime, ()) if p.kind == "features"), None)

    def program_files(self, runtime: str) -> list[str]:
        """The files a device with ``runtime`` needs."""
        frozen = [FROZEN] if frozen_size(self.layout) else []
        tokenizer = [TOKENIZER] if self.tokenizer else []
        return [*(program.file for program in self.programs.get(runtime, ())), *frozen, *tokenizer]


def _check_scaled(scaled: tuple[str, ...], layout: Layout) -> None:
    """Raise ValueError where a factor would multiply anything but parameters, once each."""
    if len(set(scaled)) != len(scaled) or not {t.name for t in layout.parameters}.issuperset(scaled):
        raise ValueError("a factor multiplies parameters, once each")


def _check_features(program: Program, layout: Layout) -> None:
    """Raise ValueError where a program makes no features of frozen tensors and samples."""
    known = {f"{FROZEN_TENSOR}{tensor.name}" for tensor in layout.frozen}
    *frozen, x = program.inputs or ("",)
    if x != "x" or not known >= set(frozen) or len(program.outputs) != 1:
        raise ValueError("a program of features takes frozen tensors and x, and gives one array")
    if not 1 <= (program.batch or 1) <= _MOST_AT_A_TIME:
        raise ValueError(f"a program of features takes 1 to {_MOST_AT_A_TIME} samples at a time")


def _check_texts(taken: Input, inputs: Sequence[NamedInput]) -> None:
    """Raise ValueError where no tokenizer can fill a model's inputs."""
    shapes = {each.shape for each in inputs} or {taken.shape}
    named = not inputs or "input_ids" in {each.name for each in inputs} <= FILLED
    if not named or len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        raise ValueError(f"a tokenizer fills {', '.join(sorted(FILLED))}, of one length")


class Bundle:
    """A verified bundle on disk.

    Parameters
    ----------
    root
        Its folder.
    manifest
        The manifest as it stands there.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.manifest = manifest

    def __repr__(self) -> str:
        """The model, its size, its runtimes, and where it lies."""
        runtimes = ", ".join(self.manifest.programs)
        return f"Bundle({self.manifest.name}, {self.layout.size} numbers, {runtimes}, at '{self.root}')"

    @property
    def layout(self) -> Layout:
        """The model's layout."""
        return self.manifest.layout

    @classmethod
    def load(cls, root: Path, *, runtime: str | None = None) -> "Bundle":
        """Open a bundle and verify it.

        Parameters
        ----------
        root
            The folder.
        runtime
            Verify (and require) only the programs of this runtime, as a device does; None for every file.

        Raises
        ------
        BundleError
            Naming the first file that is missing, damaged or unknown.
        """
        try:
            raw, seal = (root / MANIFEST).read_bytes(), (root / SEAL).read_bytes()
        except OSError as error:
            raise BundleError(f"There is no bundle at '{root}': {MANIFEST} or {SEAL} cannot be read.") from error
        if seal != seal_of(raw):
            raise BundleError(f"'{root / MANIFEST}' is damaged: its checksum is not the one in {SEAL}.")
        manifest = parse_manifest(raw, where=str(root / MANIFEST))
        wanted = list(manifest.files) if runtime is None else manifest.program_files(runtime)
        for name in wanted:
            _verify(root / name, manifest.files[name])
        return cls(root, manifest)

    @classmethod
    def save(cls, root: Path, manifest: Manifest, files: Mapping[str, bytes]) -> "Bundle":
        """Write a bundle: files first, the manifest's seal last, so that a half-written one is none.

        Raises BundleError when ``root`` cannot be written.
        """
        entries = {name: File(hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()}
        manifest = msgspec.structs.replace(manifest, files=entries)
        raw = msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=1) + b"\n"
        try:
            (root / SEAL).unlink(missing_ok=True)
            for name, data in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            (root / MANIFEST).write_bytes(raw)
            write_atomically(root / SEAL, seal_of(raw))
        except OSError as error:
            raise BundleError(f"The bundle cannot be written to '{root}': {error.strerror}.") from error
        return cls(root, manifest)

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest, and so of all that is in the bundle."""
        return hashlib.sha256(self.read(MANIFEST)).hexdigest()

    def read(self, name: str) -> bytes:
        """The bytes of one file of the bundle."""
        return (self.root / name).read_bytes()

    @cached_property
    def frozen(self) -> FrozenTensors:
        """What its programs read and never train, mapped into memory; raises BundleError where that cannot be."""
        return FrozenTensors(self.root / FROZEN, self.layout)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The initial weights, in the layout's order (needs safetensors: not on devices)."""
        from safetensors.numpy import load_file

        held = load_file(self.root / WEIGHTS)
        tensors = self.layout.tensors
        if sorted(held) != sorted(t.name for t in tensors) or any(held[t.name].shape != t.shape for t in tensors):
            raise BundleError(f"'{self.root / WEIGHTS}' holds other tensors than the layout names.")
        return {tensor.name: held[tensor.name] for tensor in tensors}


def seal_of(raw: bytes) -> bytes:
    """The contents of manifest.sha256 for a manifest's bytes; ``sha256sum -c`` checks it."""
    return f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n".encode()


def parse_manifest(raw: bytes, *, where: str) -> Manifest:
    """Read a manifest's bytes; raises BundleError, naming ``where``, on anything this version does not know."""
    try:
        schema = msgspec.json.decode(raw, type=dict[str, object]).get("schema")
        if schema != SCHEMA:
            reader = _READERS.get(schema) if isinstance(schema, int) else None
            advice = (
                f"edge-fl {reader} reads it; or export the model again" if reader else "export the model again"
            )
            raise BundleError(
                f"'{where}' has schema version {schema}, and this edge-fl reads version {SCHEMA}: {advice}."
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except UNREADABLE as error:
        raise BundleError(f"'{where}' is no manifest: {error}.") from error
    for name in manifest.files:
        if not _PATH.fullmatch(name) or name in (MANIFEST, SEAL):
            raise BundleError(f"'{where}' names the file {name!r}, which cannot be a bundle's.")
    size = frozen_size(manifest.layout)
    if size and (FROZEN not in manifest.files or manifest.files[FROZEN].size != size):
        raise BundleError(
            f"'{where}' names no file '{FROZEN}' of {size} bytes, which its frozen and personal tensors have."
        )
    if manifest.tokenizer and TOKENIZER not in manifest.files:
        raise BundleError(f"'{where}' names no file '{TOKENIZER}', which its model of texts needs.")
    listed = [p.file for programs in manifest.programs.values() for p in programs]
    missing = [name for name in listed if name not in manifest.files]
    if missing:
        raise BundleError(f"'{where}' names the program '{missing[0]}' but gives no checksum for it.")
    return manifest


def _verify(path: Path, expected: File) -> None:
    try:
        with path.open("rb") as file:
            size, digest = os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BundleError(f"The bundle's file '{path}' cannot be read: {error.strerror}.") from error
    if size != expected.size or digest != expected.sha256:
        raise BundleError(f"The bundle's file '{path}' is damaged: its checksum is not the manifest's.")
