"""The model's forward pass in a bundle: a function of its kept entries, for any units and any batch.

Whoever extracts a model has the bundle and not the code that built it, so this program is what a model of any width,
for any runtime, is made from. It holds no weights, and no device downloads it.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BundleError, ParityError, UnsupportedModelError
from edge_fl.core.frozen import cut_frozen
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.runtimes.torch_eager import load_program
from exporter.accept import Fit, example_inputs
from exporter.frozen_dtype import arrays_of
from exporter.limits import LIMIT, SMALLEST
from exporter.own_outputs import predictions
from exporter.program_file import program_bytes
from exporter.quiet import quiet
from exporter.sentence import first_line
from exporter.source import Source, Traceable, batch_ports, frozen_ports, tensor_ports
from exporter.trace import export_symbolic
from exporter.written_out import written_out

__all__ = ["FORWARD", "load_forward", "save_forward"]

FORWARD = "model/forward.pt2"
"""The program's path in a bundle."""

_BATCH = 3  # torch takes a length of 1 for a constant


def save_forward(source: Source) -> bytes:
    """Export ``(x [B, *input], kept entries of every tensor..., frozen...) -> outputs [B, ...]`` as a ``.pt2`` file.

    BatchNorm normalises by its running statistics, nothing is scaled. The program is run with fewer units and
    another batch than it was traced with, and held against the model.

    Raises
    ------
    UnsupportedModelError
        When the model cannot be traced, or fixes the batch or how many units it keeps.
    ParityError
        When the program does not compute what the model computes.
    """
    function = _function(source)
    x, *_ = batch_ports(source)
    ports = (x, *tensor_ports(source.layout), *frozen_ports(source))
    program = Traceable(source, "forward", lambda *inputs: (function(*inputs),), ports, ("outputs",))
    with torch.no_grad(), quiet():
        exported = export_symbolic(program, {})
    content = program_bytes(exported)
    _prove(source, _runnable(exported), function)
    return content


def load_forward(bundle: Bundle) -> nn.Module:
    """The forward of a bundle, to be called as :func:`save_forward` says; raises BundleError where there is none."""
    if FORWARD not in bundle.manifest.files:
        raise BundleError(f"The bundle '{bundle.root}' holds no '{FORWARD}' to make a model from: export it anew.")
    return _runnable(load_program(bundle.read(FORWARD), f"'{bundle.root / FORWARD}'"))


def _runnable(exported: ExportedProgram) -> nn.Module:
    # torch lets a length s be 1 though it was traced as at least 2, but not a length such as 16 s be 16.
    for length in [length for length in exported.range_constraints if not length.is_Symbol]:
        del exported.range_constraints[length]
    return exported.module(check_guards=False)


def _function(source: Source) -> Callable[..., Tensor]:
    module = copy.deepcopy(source.module).eval()
    names = [tensor.name for tensor in (*source.layout.tensors, *source.layout.frozen)]

    def forward(x: Tensor, *tensors: Tensor) -> Tensor:
        return predictions(source.outputs(module, dict(zip(names, tensors, strict=True)), x))

    return forward


def _example(source: Source, pattern: Pattern, batch: int) -> tuple[Tensor, ...]:
    held = source.original.state_dict()
    weights = {tensor.name: held[tensor.name].numpy() for tensor in source.layout.tensors}
    rng = np.random.default_rng(0)
    for tensor in source.layout.parameters:
        if not weights[tensor.name].any():  # an output layer that begins at zero hides all that is before it
            weights[tensor.name] = 0.1 * rng.standard_normal(tensor.shape, dtype=np.float32)
    kept = Selection.of(pattern, "units").gather(weights)
    frozen = cut_frozen(arrays_of(source.original, source.layout), pattern)
    x = example_inputs(Fit(source.input, (), source.classes, source.inputs), batch)
    return (x, *(torch.from_numpy(array) for array in (*kept.values(), *frozen.values())))


def _expected(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    try:
        return function(*inputs)
    except UnsupportedModelError:  # of first states that the model writes as zeros, for all units
        with written_out():
            return function(*inputs)


def _prove(source: Source, program: nn.Module, function: Callable[..., Tensor]) -> None:
    """Two blocks of one size that the trace took for one would show here."""
    blocks = source.layout.blocks
    kept = [np.arange(block.size) < max(1, block.size - 1 - i) for i, block in enumerate(blocks)]
    pattern = Pattern(source.layout, np.concatenate([*kept, np.zeros(0, dtype=np.bool_)]))
    inputs = _example(source, pattern, _BATCH - 1)
    try:
        expected = _expected(function, inputs)
        (outputs,) = program(*inputs)
        off = float((outputs - expected).abs().max()) / max(SMALLEST, float(expected.abs().max()))
    except RuntimeError as error:
        raise UnsupportedModelError(
            f"The model's forward fixes its batch or how many units it keeps ({first_line(error)}): read no shape as "
            "a Python number there."
        ) from error
    if not off <= LIMIT:
        raise ParityError(
            f"The forward program of {pattern.counts} units does not compute what torch computes: an output is off by "
            f"{off:.2g} of the largest (limit {LIMIT:g}), so no bundle was written."
        )
