"""From a function of tensors to a graph of ATen operations, forward, backward and update in one.

Exporting a module that calls ``torch.func.grad`` is not possible; tracing it first with ``make_fx`` leaves
a graph without any autograd, which is.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._export.verifier import Verifier
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from edge_fl.core.errors import UnsupportedModelError
from exporter.checkpoint import with_marks
from exporter.decompositions import Decompositions
from exporter.example_lengths import distinct_batch, distinct_counts
from exporter.graph_parts import graph_parts
from exporter.open_lengths import FixedUnitsError, Free, blocks_in, open_dims, stand_ins
from exporter.passes import optimise
from exporter.passes.mutations import remove_mutations, writes_in_place
from exporter.passes.values import fill_values
from exporter.sentence import first_line
from exporter.source import Traceable
from exporter.written_out import written_out

__all__ = ["TracedProgram", "export_function", "export_static", "export_symbolic", "trace_function"]


_Result = TypeVar("_Result")


def export_static(
    program: Traceable, counts: Mapping[str, int], batch: int, table: Decompositions
) -> ExportedProgram:
    """Trace for exactly ``counts`` kept units of each block and ``batch`` samples; the program is not fit to be saved.

    Raises UnsupportedModelError when the model cannot be traced.
    """
    return _refused(program, lambda: trace_function(program.function, program.example(counts, batch), table))


def export_symbolic(program: Traceable, table: Decompositions, *, saved: bool = True) -> ExportedProgram:
    """Export for any kept units of each block and any batch.

    Parameters
    ----------
    saved
        Whether the program is to be saved as it is; tracing is twice as quick for one that is only translated.

    Raises
    ------
    FixedUnitsError
        When the model cannot be traced, and could be with all units of some blocks.
    UnsupportedModelError
        When the model cannot be traced, or fixes a width or the batch.
    """
    free, example = [program.open_lengths(name) for name in program.inputs], program.example(*_distinct(program))
    graph = _refused(program, lambda: _opened(program.function, example, table, free))
    _require_free(program, graph)
    return _refused(program, lambda: _exported(graph, example, free) if saved else _translatable(graph))


def export_function(
    function: Callable[..., tuple[Tensor, ...]],
    example: tuple[Tensor, ...],
    table: Decompositions,
    free: Free | None = None,
) -> ExportedProgram:
    """Export a function of tensors: traced under ``table``, then optimised (:mod:`exporter.passes`).

    Parameters
    ----------
    example
        Inputs of the right shapes; the values do not matter.
    free
        For each input the axes whose length stays open, and what it is made of. None fixes every axis.

    Raises
    ------
    Exception
        Whatever torch raises on what it cannot trace.
    """
    return _exported(_traced(function, example, table, free), example, free)


def trace_function(
    function: Callable[..., tuple[Tensor, ...]],
    example: tuple[Tensor, ...],
    table: Decompositions,
    free: Free | None = None,
) -> ExportedProgram:
    """As :func:`export_function`, for a translator alone: not traced a second time, and not fit to be saved.

    Every operation that the translator needs decomposed must be in ``table``.
    """
    return _translatable(_traced(function, example, table, free))


def _translatable(graph: GraphModule) -> ExportedProgram:
    placeholders = graph.graph.find_nodes(op="placeholder")
    mode = placeholders[0].meta["val"].fake_mode
    constants = _lift_constants(graph, mode)
    fill_values(graph.graph, mode)
    results = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    signature = ExportGraphSignature(
        [
            *(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name) for name in constants),
            *(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in placeholders),
        ],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results],
    )
    return TracedProgram(graph, graph.graph, signature, {}, {}, [], constants=constants, verifiers=[Verifier])


def _exported(graph: GraphModule, example: tuple[Tensor, ...], free: Free | None) -> ExportedProgram:
    _drop_unread_constants(graph)
    with _uncached(free):
        dims = None if free is None else open_dims(free)
        return torch.export.export(graph, example, dynamic_shapes=dims, strict=False)


def _drop_unread_constants(graph: GraphModule) -> None:
    """Else torch makes inputs of what an optimised graph no longer reads, and fails on a program within another."""
    read = {str(node.target) for node in graph.graph.find_nodes(op="get_attr")}
    for name, value in [*vars(graph).items(), *graph.named_buffers(recurse=False, remove_duplicate=False)]:
        if isinstance(value, Tensor) and name not in read:
            delattr(graph, name)


def _lift_constants(graph: GraphModule, mode: FakeTensorMode) -> dict[str, Any]:
    """Make inputs of the tensors that the graph holds; returns them by those inputs' names."""
    constants: dict[str, Any] = {}
    first = next(iter(graph.graph.nodes))
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, node.target, None)
        if isinstance(value, Tensor):
            with graph.graph.inserting_before(first):
                lifted = graph.graph.placeholder(f"constant_{len(constants)}")
            lifted.meta["val"] = mode.from_tensor(value, static_shapes=True)
            node.replace_all_uses_with(lifted)
            graph.graph.erase_node(node)
            constants[lifted.name] = value
    graph.recompile()
    return constants


class TracedProgram(ExportedProgram):
    """A program in which everything is decomposed already."""

    def run_decompositions(self, *_: object, **__: object) -> ExportedProgram:
        """Give the program as it is: running torch's decompositions would trace it once more."""
        return self


def _traced(
    function: Callable[..., tuple[Tensor, ...]],
    example: tuple[Tensor, ...],
    table: Decompositions,
    free: Free | None,
) -> GraphModule:
    graph = _graph_of(function, example, table, free)
    # Once optimised, another call with the same arguments may share a buffer that is written to.
    written = [part.graph for part in graph_parts(graph) if writes_in_place(part.graph)]
    if not all(remove_mutations(part, table) for part in written):
        graph = _graph_of(functionalize(with_marks(graph), remove="mutations"), example, table, free)
    optimise(graph)
    return graph


def _opened(
    function: Callable[..., tuple[Tensor, ...]], example: tuple[Tensor, ...], table: Decompositions, free: Free
) -> GraphModule:
    try:
        return _traced(function, example, table, free)
    except Exception as error:
        if blocks := blocks_in(str(error), example, free):
            raise FixedUnitsError(blocks, first_line(error)) from error
        raise


def _graph_of(
    function: Callable[..., tuple[Tensor, ...]],
    example: tuple[Tensor, ...],
    table: Decompositions,
    free: Free | None,
) -> GraphModule:
    with written_out(), _uncached(free):
        inputs = list(example) if free is None else stand_ins(example, free)
        return make_fx(
            function, decomposition_table=dict(table), tracing_mode="fake" if free is None else "symbolic"
        )(*inputs)


def _uncached(free: Free | None) -> AbstractContextManager[Any]:
    """Trace without torch's cache of fake tensors where lengths are open: hits are rare, and an entry costs much."""
    return nullcontext() if free is None else torch._dynamo.config.patch(fake_tensor_cache_enabled=False)


def _refused(program: Traceable, export: Callable[[], _Result]) -> _Result:
    try:
        return export()
    except FixedUnitsError:
        raise
    except Exception as error:  # torch raises many types on what it cannot trace
        if "Constraints violated" in str(error):  # of several hundred sums of widths torch holds some for equal
            raise UnsupportedModelError(
                f"torch ties widths of the {program.kind} program together that differ, and cannot leave them open: "
                "name layers in the model's edge_fl_dense, which stay dense."
            ) from error
        raise UnsupportedModelError(
            f"The model's {program.kind} program cannot be traced ({first_line(error)}): write its forward with "
            "linear layers, convolutions, pooling, normalisation, activations, concatenations and additions."
        ) from error


def _require_free(program: Traceable, graph: GraphModule) -> None:
    """A shape that forward writes as a number, or reads as one, would bind the program to one width or batch."""
    values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    for name, value in zip(program.inputs, values, strict=True):
        for axis in program.open_lengths(name):
            if is_concrete_int(value.shape[axis]):
                raise UnsupportedModelError(
                    f"The model's forward or its loss fixes axis {axis} of '{name}' at the {value.shape[axis]} it was "
                    f"traced with: write a length as x.shape[{axis}], not as len(x), int(...) or a number."
                )


def _distinct(program: Traceable) -> tuple[dict[str, int], int]:
    """Kept units and a batch that no two axes share."""
    source = program.source
    layout, shape = source.layout, source.lengths
    counts = (
        source.full if program.kind in ("eval", "features") else distinct_counts(layout, list(source.full), shape)
    )
    return counts, distinct_batch(layout, counts, shape, program.multiple)
