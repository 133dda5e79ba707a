"""From a function of tensors to a graph of ATen operations, forward, backward and update in one.

Exporting a module that calls ``torch.func.grad`` is not possible; tracing it first with ``make_fx`` leaves
a graph without any autograd, which is.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from exporter.source import Traceable

__all__ = ["Decompositions", "export_static", "export_symbolic", "traced"]

Decompositions = Mapping[Any, Callable[..., Any]]
"""ATen overloads and what to trace in their place."""


def traced(
    program: Traceable, counts: Mapping[str, int], batch: int, table: Decompositions, *, symbolic: bool
) -> tuple[GraphModule, tuple[torch.Tensor, ...]]:
    """The graph of a program and the example inputs it was traced with."""
    example = program.example(counts, batch)
    graph = make_fx(
        program.function, decomposition_table=dict(table), tracing_mode="symbolic" if symbolic else "real"
    )(*example)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, example


def export_static(
    program: Traceable, counts: Mapping[str, int], batch: int, table: Decompositions
) -> ExportedProgram:
    """Export for exactly ``counts`` kept units of each block and ``batch`` samples."""
    graph, example = traced(program, counts, batch, table, symbolic=False)
    return torch.export.export(graph, example, strict=False)


def export_symbolic(program: Traceable, table: Decompositions) -> ExportedProgram:
    """Export for any kept units of each block and any batch."""
    counts, batch = _distinct(program)
    graph, example = traced(program, counts, batch, table, symbolic=True)
    dims = [dict.fromkeys(program.dynamic_axes(name), Dim.AUTO) for name in program.inputs]
    return torch.export.export(graph, example, dynamic_shapes=tuple(dims), strict=False)


def _distinct(program: Traceable) -> tuple[dict[str, int], int]:
    """Kept units and a batch that no two axes share: torch takes axes of one length for one symbol."""
    if program.kind == "eval":
        return program.source.full, _batch(program, program.source.full)
    names = list(program.source.full)
    for start in count(5, 2):
        counts = {name: start + 4 * i for i, name in enumerate(names)}
        if _independent(program, counts):
            return counts, _batch(program, counts)
    raise AssertionError("there are always larger numbers")


def _independent(program: Traceable, counts: dict[str, int]) -> bool:
    """Whether axes of equal length are always axes of equal segments."""
    seen: dict[int, object] = {}
    for tensor in program.source.layout.tensors:
        for axis in tensor.units:
            length = sum(segment.length(counts) for segment in axis)
            key = axis if any(segment.block is not None for segment in axis) else None
            if seen.setdefault(length, key) != key:
                return False
    return True


def _batch(program: Traceable, counts: dict[str, int]) -> int:
    lengths = {sum(s.length(counts) for s in axis) for t in program.source.layout.tensors for axis in t.units}
    taken = lengths | set(program.source.input_shape)
    return next(n for n in count(3) if n not in taken)
