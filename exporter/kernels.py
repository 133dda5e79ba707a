"""Which operations of a train step a runtime has no kernel for, known from one trace and no compilation.

What a runtime's table of decompositions leaves over is held against what its translator or its kernel library lists.
A shape that is read as a number, or a kernel that computes nonsense, shows only in an export.
"""

import copy
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from edge_fl.core.errors import UnsupportedModelError
from exporter.decompositions import Decompositions
from exporter.graph_parts import graph_parts
from exporter.quiet import quiet
from exporter.recurrent import unrolled
from exporter.sentence import first_line
from exporter.source import Source, Traceable, batch_ports
from exporter.where import Running
from exporter.written_out import written_out

__all__ = ["MissingKernel", "find_missing_kernels", "operation_name", "refuse_missing_kernels"]

_INSTEAD = {
    "_cdist": "|a|^2 + |b|^2 - 2 a.b",
    "_fft_c2c": "a convolution",
    "_fft_c2r": "a convolution",
    "_fft_r2c": "a convolution",
    "cumprod": "exp of the cumsum of the logarithms",
    "kthvalue": "max or mean",
    "median": "max or mean",
    "sort": "max or mean",
    "topk": "max or mean",
}
_OTHERWISE = "products, convolutions, pooling, normalisation and elementwise arithmetic"
_MODULE = "edge_fl_module"  # where in a node's meta the module is noted that called it


@dataclass(frozen=True)
class MissingKernel:
    """An operation that a runtime cannot run, and what may be written in its place.

    ``module`` is the one it comes from, "" for the model's own forward, None for the backward pass of who knows what.
    """

    operation: str
    module: str | None
    instead: str

    def sentence(self, runtime: str) -> str:
        """What is wrong, where, and what to do."""
        where = f"'{self.module}'" if self.module else "the model's own forward"
        where = "the backward pass" if self.module is None else where
        return f"{runtime} cannot train '{self.operation}' in {where}: write it with {self.instead}."


def find_missing_kernels(runtime: str, step: Traceable, *, batch: int) -> tuple[MissingKernel, ...] | None:
    """What keeps ``runtime`` from training a model, one entry for each operation and module.

    Parameters
    ----------
    batch
        Samples of the batch it is traced with.

    Returns
    -------
    None when nothing is known without an export: its compiler is not installed here, or lists no kernels.

    Raises
    ------
    UnsupportedModelError
        When the train step cannot be traced at all.
    """
    with quiet():
        try:
            # The translators' own registries take seconds to import: nobody waits for one that is not asked for.
            table, has_kernel = _RUNTIMES[runtime]()
        except (ImportError, KeyError):
            return None
        graph = _traced(step, table, batch, loops=runtime == "onnx")
        found = {
            (str(target), module): target
            for target, module in _operations(graph, _calls(step.source))
            if not has_kernel(_functional(target))
        }
    return tuple(
        MissingKernel(operation, module, _instead(found[operation, module]))
        for operation, module in sorted(found, key=lambda pair: (pair[1] or "", pair[0]))
    )


def _instead(operation: Any) -> str:
    return next(
        (text for name, text in _INSTEAD.items() if operation_name(operation).startswith(name)), _OTHERWISE
    )


def refuse_missing_kernels(runtimes: tuple[str, ...], steps: tuple[Traceable, ...], *, batch: int) -> None:
    """Raise UnsupportedModelError naming the first operation that one of ``runtimes`` cannot train, if any."""
    for runtime in runtimes:
        for step in steps:
            for missing in find_missing_kernels(runtime, step, batch=batch) or ():
                raise UnsupportedModelError(missing.sentence(runtime))


HasKernel = Callable[[Any], bool]


def _onnx() -> tuple[Decompositions, HasKernel]:
    from exporter.lower.onnx import onnx_decompositions
    from exporter.torchlib import translations

    return (
        onnx_decompositions(),
        lambda target: not isinstance(target, torch._ops.OpOverload) or translations().is_registered(target),
    )


def _executorch() -> tuple[Decompositions, HasKernel]:
    from exporter.lower.executorch_decompositions import executorch_decompositions

    names = _executorch_kernels()
    return (
        executorch_decompositions(),
        lambda target: not {operation_name(target), f"{operation_name(target)}_copy"}.isdisjoint(names),
    )


@cache
def _executorch_kernels() -> frozenset[str]:
    listed = files(importlib.import_module("executorch")) / "kernels" / "portable" / "functions.yaml"
    return frozenset(re.findall(r"^- op: (\w+)", listed.read_text(), flags=re.MULTILINE)) | _EXECUTORCH_OTHERS


# Not of the portable library: XNNPACK's, memory's, and what its compiler rewrites into listed ones.
_EXECUTORCH_OTHERS = frozenset({"getitem", "empty", "alias", "detach", "lift_fresh_copy", "new_zeros", "new_ones"})


def _torch_eager() -> tuple[Decompositions, HasKernel]:
    return {}, lambda _: True  # what was traced is what it runs


_RUNTIMES: dict[str, Callable[[], tuple[Decompositions, HasKernel]]] = {
    "onnx": _onnx,
    "executorch": _executorch,
    "executorch_training": _executorch,
    "torch_eager": _torch_eager,
}


def _traced(step: Traceable, table: Decompositions, batch: int, *, loops: bool) -> fx.GraphModule:
    example = step.example(step.source.full, batch)
    try:
        with written_out(), nullcontext() if loops else unrolled(), Running(step.source.module, _note):
            return make_fx(step.function, decomposition_table=dict(table), tracing_mode="fake")(*example)
    except Exception as error:  # torch raises many types on what it cannot trace
        raise UnsupportedModelError(
            f"The model's train step cannot be traced ({first_line(error)}): write its forward with {_OTHERWISE}."
        ) from error


def _note(module: str) -> None:
    """Note ``module`` in every operation traced since the last note."""
    tracing = get_proxy_mode()
    for node in reversed(tracing.tracer.graph.nodes) if tracing is not None else ():
        if node.op == "placeholder" or _MODULE in node.meta:
            return
        node.meta[_MODULE] = module


def _operations(graph: fx.GraphModule, calls: Mapping[str, str]) -> Iterator[tuple[Any, str | None]]:
    """Every operation, and the module that called it or, of a gradient, its forward; None where nobody knows."""
    for part in graph_parts(graph):
        for node in part.graph.nodes:
            if node.op == "call_function":
                forward = operation_name(node.target).removesuffix("_backward")
                yield node.target, node.meta.get(_MODULE, calls.get(forward))


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes which module is the first to call each operation, before any is decomposed."""

    def __init__(self, running: Running, first: dict[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._running, self._first = running, first

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Note ``func`` and call it."""
        self._first.setdefault(operation_name(func), self._running.module)
        return func(*args, **(kwargs or {}))


def _calls(source: Source) -> dict[str, str]:
    """Operations of the model's own forward by name, and the module of each."""
    model = copy.deepcopy(source.original)
    first: dict[str, str] = {}
    x = next(port for port in batch_ports(source) if port.name == "x").example({}, 2)
    with torch.no_grad(), Running(model) as running, _Calls(running, first):
        model(x)
    return first


def _functional(target: Any) -> Any:
    """What an operation that writes in place becomes in a program: one that gives what it writes."""
    if not (isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable):
        return target
    named = getattr(
        torch.ops.aten, _WRITES.get(operation_name(target), operation_name(target).removesuffix("_")), None
    )
    return getattr(named, target._overloadname, getattr(named, "default", target))


_WRITES = {"copy_": "clone", "fill_": "full_like", "zero_": "zeros_like", "normal_": "randn_like"}


def operation_name(target: Any) -> str:
    """``cumprod`` of ``aten.cumprod.default``."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return str(getattr(target, "__name__", target))
