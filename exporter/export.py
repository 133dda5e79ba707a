"""From a model to a bundle: accept, derive, trace, lower, prove, and only then write."""

import copy
import importlib.metadata
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import safetensors.numpy
from torch import nn

from edge_fl.core.bundle import (
    SCHEMA,
    TOKENIZER,
    WEIGHTS,
    WHOLE_BATCHES,
    Bundle,
    Manifest,
    Parity,
    Program,
    Tokenizer,
)
from edge_fl.core.errors import BundleError, ConfigError, UnsupportedModelError
from edge_fl.core.frozen import FROZEN, pack_frozen
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.width_statistics import with_rows, without_rows
from exporter.accept import accept, example_inputs
from exporter.adapt import adapt, momenta
from exporter.checkpoint import checkpoint_names
from exporter.derive import Derivation, derive
from exporter.dropout import without_dropout
from exporter.dropout_places import find_dropout
from exporter.extract.forward import FORWARD, save_forward
from exporter.features import FEATURE_BATCH, Below, Cut, above, build_features, find_cut
from exporter.forward import build_evaluation
from exporter.frozen_dtype import arrays_of, round_frozen, scaled_tensor, store_frozen
from exporter.kernels import refuse_missing_kernels
from exporter.lora import adapter_gains
from exporter.losses import Loss, find_loss, first_is_usual, try_loss
from exporter.lower import Lowered, Report, Request, lower_for, program_widths
from exporter.one_pass import one_pass
from exporter.open_lengths import FixedUnitsError
from exporter.output_folder import check_output
from exporter.output_noise import describe_outputs
from exporter.own_outputs import predictions, with_plain_outputs
from exporter.parity import check_parity
from exporter.personal import personal_names, set_apart
from exporter.plain_tensors import with_registered_tensors
from exporter.recurrent.scaling import inner_weights
from exporter.report import Findings, examine
from exporter.scaled import same_factor, scaled_parameters
from exporter.sentence import some_names
from exporter.source import Source, Step, Traceable
from exporter.squashed_outputs import warn_of_squashed_outputs
from exporter.steps import STEPS
from exporter.target import Target, check_scores, check_target
from exporter.tokenizer_file import check_tokenizer, settled
from exporter.vocabulary import vocabularies_of
from exporter.widths import costs_at

__all__ = ["Target", "check_model", "count_programs", "export_bundle"]

_SHOWN = 4  # layers of a note
_A_PROGRAM_A_WIDTH = ("executorch", "executorch_training")
"""Runtimes whose programs are static."""

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


def check_model(model: nn.Module, target: Target, *, report: Report = lambda _: None) -> Findings:
    """What would be masked, what stays dense, what it costs and which operations have no kernel; nothing is written.

    Raises as :func:`export_bundle` does, as far as it can be known without compiling a program.
    """
    whole, derivation = _read(_stored(model, target), target, report)
    source, cut = _cut(whole, target)
    costs = costs_at(whole.original, whole.layout, target.input, target.widths, cut=cut)
    return examine(source, target, replace(derivation, layout=derivation.apart), costs, report)


def count_programs(target: Target) -> int:
    """How many programs an export makes at most; beside these it reports a proof a runtime, and three stages."""
    whole = 2 if target.cache_features else 1  # programs of all units: one evaluates, one makes features
    counts = 2 * len(target.widths) - (1000 in target.widths)  # two roundings each, which agree on the full width
    widths = {runtime: counts if runtime in _A_PROGRAM_A_WIDTH else 1 for runtime in target.runtimes}
    return sum(len(target.variants) * number + whole for number in widths.values())


def export_bundle(model: nn.Module, target: Target, root: Path, *, report: Report = lambda _: None) -> Bundle:
    """Write the bundle of a model with the weights it has now.

    Parameters
    ----------
    model
        As it is to be trained; every module is taken to be in training mode.
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
        When ``target`` makes no sense, or ``root`` cannot be written, or holds what is no bundle.
    """
    check_output(root)
    model = _stored(model, target)
    compiled = _compiled(model, target, report)
    source, found = compiled.source, compiled.found
    warn_of_squashed_outputs(compiled.whole.original, example_inputs(target.fit, 3), source.loss)
    files = {program.file: data for programs in compiled.lowered.values() for program, data in programs}
    files[FORWARD] = compiled.forward
    if target.tokenizer is not None:
        (length,) = next((each.shape for each in target.inputs), target.input.shape)  # checked: they are alike
        files[TOKENIZER] = settled(target.tokenizer, length).content
    manifest = _manifest(target, compiled)
    check_scores(target, manifest)
    below = None if compiled.cut is None else Below(compiled.whole, compiled.cut)
    parity: dict[str, Parity] = {}
    with tempfile.TemporaryDirectory() as scratch:  # what is personal is proven with the rest
        unproven = Bundle.save(Path(scratch), manifest, {**files, **_tensors(model, found.layout)})
        for runtime in target.runtimes:
            report(f"{runtime}: comparing with torch")
            parity[runtime] = _proven(source, target, unproven, runtime, below)
    report("writing")
    manifest = msgspec.structs.replace(manifest, layout=found.apart, parity=parity)
    return Bundle.save(root, manifest, {**files, **_tensors(model, found.apart)})


def _proven(source: Source, target: Target, unproven: Bundle, runtime: str, below: Below | None) -> Parity:
    try:
        return check_parity(source, unproven, runtime, widths=target.widths, batch=target.batch, below=below)
    except BundleError:  # of a program that compiles, but that the runtime has no kernels for
        refuse_missing_kernels((runtime,), _steps(source, target), batch=target.batch)
        raise


def _steps(source: Source, target: Target) -> tuple[Step, ...]:
    return tuple(STEPS.find(variant)(source) for variant in target.variants)


def _stored(model: nn.Module, target: Target) -> nn.Module:
    """The model with every tensor that it reads registered, and of the numbers that the bundle holds."""
    if not all(module.training for module in model.modules()):  # as those of from_pretrained are not
        model = copy.deepcopy(model).train()
    model = with_registered_tensors(model if target.dropout else without_dropout(model))
    return round_frozen(model, target.frozen_dtype)


class _Compiled(NamedTuple):
    """A model as it is traced, its layout, and what was made of both: each runtime's programs, and its forward.

    ``source`` is what steps and evaluation are made of: the model ``whole``, or what lies above a ``cut``.
    """

    whole: Source
    source: Source
    cut: Cut | None
    found: Derivation
    lowered: dict[str, Lowered]
    forward: bytes


def _compiled(model: nn.Module, target: Target, report: Report) -> _Compiled:
    """Layers whose units a trace cannot leave open are traced dense, and so are those of the same name but for numbers:
    the copies of a layer in other stages would each cost a trace that fails.
    """
    closed: dict[str, str] = {}
    while True:
        whole, found = _read(model, target, report, lambda block: closed.get(_numberless(block)))
        source, cut = _cut(whole, target)
        try:
            features = None if cut is None else build_features(whole, cut)
            lowered = _lowered(source, target, features, report)
            report("forward program")
            # Whoever extracts gives it tensors in the order of the bundle's layout.
            given = without_rows(found.apart.trained)
            forward = save_forward(replace(whole, layout=given))
            return _Compiled(whole, source, cut, found, lowered, forward)
        except FixedUnitsError as error:
            if closed.keys() >= set(map(_numberless, error.blocks)):
                raise  # a layout that the model declares stays as it is
            reason = f"a trace that leaves its units open fails ({error.reason})"
            closed.update(dict.fromkeys(map(_numberless, error.blocks), reason))


def _numberless(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _read(
    model: nn.Module, target: Target, report: Report, closed: Callable[[str], str | None] = lambda _: None
) -> tuple[Source, Derivation]:
    """The model as it is traced, and its layout; ``Source.original`` gives one tensor."""
    report("reading the model")
    check_target(target)
    loss = find_loss(target.loss, target=target.target.dtype)
    model = with_plain_outputs(model, example_inputs(target.fit, 3), loss.outputs)
    read = accept(model, target.fit)
    try_loss(loss, model, example_inputs(target.fit, 3), target.target)
    target, vocabulary = _with_vocabularies(model, target)
    personal = personal_names(model, target.personal)
    derivation = derive(model, example_inputs(target.fit, 3), read, closed, personal=personal)
    set_apart(derivation.layout, personal)  # what cannot be is told before anything is compiled
    derivation = replace(derivation, layout=store_frozen(model, derivation.layout, target.frozen_dtype))
    if target.batch_norm == "per-width":
        derivation = replace(derivation, layout=with_rows(derivation.layout, len(target.widths)))
    return _source(model, target, loss, derivation, vocabulary), derivation


def _with_vocabularies(model: nn.Module, target: Target) -> tuple[Target, int]:
    """The target with the vocabulary of each of its inputs, and that of an input without a name; 0 where unknown."""
    whole = target.inputs or target.input.dtype == "int64"
    known = vocabularies_of(model, example_inputs(target.fit, 3)) if whole else {}
    inputs = tuple(msgspec.structs.replace(each, vocabulary=known.get(each.name, 0)) for each in target.inputs)
    if target.tokenizer is not None:
        check_tokenizer(target.tokenizer, target.input, inputs, known.get("", 0))
    return replace(target, inputs=inputs), known.get("", 0)


def _cut(whole: Source, target: Target) -> tuple[Source, Cut | None]:
    """What steps are made of, and where it was cut: the model as it is where no features are kept."""
    if not target.cache_features:
        return _dropping(whole, target), None
    held = {tensor.name: scaled_tensor(tensor.name) for tensor in whole.layout.frozen}
    cut = find_cut(whole.original, example_inputs(target.fit, FEATURE_BATCH), target.input, set(held.values()))
    top = replace(
        whole,
        module=above(whole.module, cut, target.input),
        original=above(whole.original, cut, target.input),
        input=cut.features,
        inputs=cut.parts,
        below=frozenset(name for name, of in held.items() if of in cut.below),
    )
    return _dropping(top, target), cut


def _dropping(source: Source, target: Target) -> Source:
    return replace(source, dropout=find_dropout(source)) if target.dropout else source


def _lowered(source: Source, target: Target, features: Traceable | None, report: Report) -> dict[str, Lowered]:
    steps = _steps(source, target)
    try:
        widths = program_widths(source.layout, target.widths)
        request = Request(steps, build_evaluation(source), widths, target.batch, features)
        return lower_for(target.runtimes, request, report)
    except FixedUnitsError:
        raise
    except UnsupportedModelError:
        refuse_missing_kernels(target.runtimes, steps, batch=target.batch)  # names the module, where it finds one
        raise


def _source(model: nn.Module, target: Target, loss: Loss, found: Derivation, vocabulary: int) -> Source:
    if loss.target != target.target.dtype:
        raise ConfigError(
            f"The loss '{loss.name}' compares with {loss.target}, and the targets of "
            f"'{target.dataset or target.name}' are {target.target.dtype}: choose another loss."
        )
    normalised = bool(found.layout.statistics)
    if target.micro_batch and normalised and target.batch_norm in WHOLE_BATCHES:
        raise ConfigError(
            "BatchNorm normalises by whole batches: give --batch-norm frozen, or leave --micro-batch out."
        )
    rows = any(tensor.per_width for tensor in found.layout.tensors)
    module = adapt(model, batch_norm=target.batch_norm).train()
    return Source(
        module=module,
        original=model,
        layout=found.layout,
        scaled=found.scaled,
        inner=inner_weights(model, found.layout),
        loss=loss,
        input=target.input,
        target=target.target,
        classes=target.classes,
        optimizer=target.optimizer,
        batch_norm=target.batch_norm if normalised else "none",
        statistic_widths=target.widths if rows else (),
        inputs=target.inputs,
        vocabulary=vocabulary,
        classes_first=_has_classes_first(model, target, loss),
        micro_batch=target.micro_batch,
        checkpoint=checkpoint_names(module, example_inputs(target.fit, 3), target.checkpoint),
    )


def _has_classes_first(model: nn.Module, target: Target, loss: Loss) -> bool:
    """Whether the axis of classes is before those of a sample's targets; where both may be so, as is usual."""
    if loss.classes == "last" or target.target.dtype == "float32" or not target.target.shape:
        return False
    found = tuple(predictions(one_pass(model, example_inputs(target.fit, 3))).shape[1:])
    last = found == (*target.target.shape, target.classes)
    first = found == (target.classes, *target.target.shape)
    return loss.classes == "first" or (first and (not last or first_is_usual(target.target)))


def _tensors(model: nn.Module, layout: Layout) -> dict[str, bytes]:
    """The files of what devices share as they start, and of what each has from the bundle."""
    held = model.state_dict()
    # Every width's statistics start as the model's own.
    arrays = {t.name: np.broadcast_to(held[t.name].numpy(), t.shape).copy() for t in layout.trained.tensors}
    files = {WEIGHTS: safetensors.numpy.save({tensor.name: arrays[tensor.name] for tensor in layout.tensors})}
    if layout.frozen or layout.personal:
        files[FROZEN] = pack_frozen(layout, {**arrays, **arrays_of(model, layout)})
    return files


def _manifest(target: Target, compiled: _Compiled) -> Manifest:
    """Everything but the proof."""
    whole, source, found = compiled.whole, compiled.source, compiled.found
    noisy = describe_outputs(source) if "vardrop" in target.variants else ()
    programs: dict[str, tuple[Program, ...]] = {
        runtime: tuple(program for program, _ in held) for runtime, held in compiled.lowered.items()
    }
    return Manifest(
        schema=SCHEMA,
        name=target.name,
        dataset=target.dataset,
        classes=target.classes,
        input=target.input,
        target=target.target,
        vocabulary=whole.vocabulary,
        inputs=whole.inputs,
        features=None if compiled.cut is None else compiled.cut.features,
        tokenizer=None if target.tokenizer is None else Tokenizer(target.tokenizer.pad),
        loss=source.loss.name,
        layout=found.layout,
        optimizer=target.optimizer,
        batch_norm=source.batch_norm,
        statistic_widths=source.statistic_widths,
        programs=programs,
        parity={},
        tools=_tools(),
        output_noise=noisy,
        dropout=source.dropped,
        momenta=momenta(whole.module, example_inputs(target.fit, 3), whole.tracked),
        costs=costs_at(whole.original, found.layout, target.input, target.widths, cut=compiled.cut),
        scaled=_scaled(target, whole, found),
        adapters=adapter_gains(source.original),
        columns=target.columns,
        class_names=target.class_names,
        metadata=target.metadata,
        scores=target.scores,
        notes=(
            *map(_dense, found.dense_by_reason.items()),
            *_exact(source, noisy),
        ),
    )


def _scaled(target: Target, whole: Source, found: Derivation) -> tuple[str, ...]:
    """What a factor multiplies in a narrow model; of recurrent layers where the outputs agree with a step's alone."""
    names = scaled_parameters(whole.original, found.apart, found.scaled, whole.inner)
    return names if not whole.inner or same_factor(whole, names, example_inputs(target.fit, 3)) else ()


def _dense(item: tuple[str, list[str]]) -> str:
    reason, layers = item
    return f"{some_names(layers, most=_SHOWN)} {'stays' if len(layers) == 1 else 'stay'} dense: {reason}."


def _exact(source: Source, noisy: tuple[Tensor, ...]) -> Iterator[str]:
    """A note on each weight that has no dropout rates in a model of which others have."""
    rated = {outputs.name for outputs in noisy}
    for tensor in source.layout.parameters if noisy else ():
        if len(tensor.shape) > 1 and tensor.name not in rated:
            yield (
                f"'{tensor.name}' has no dropout rates in the step 'vardrop': only the weight of a Linear or Conv2d "
                "layer has that is called once, on [B, ...]."
            )


def _tools() -> dict[str, str]:
    tools = {"python": platform.python_version()}
    for name in _TOOLS:
        try:
            tools[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a compiler that was not needed
    return tools
