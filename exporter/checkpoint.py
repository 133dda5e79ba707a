"""Modules whose activations a step computes a second time, and which operations of a trace belong to them.

:mod:`exporter.passes.recompute` reads the marks that a trace is given here.
"""

import contextlib
import difflib
import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

from edge_fl.core.errors import ConfigError, ModelError
from exporter.one_pass import count_calls

__all__ = ["Mark", "checkpoint_names", "mark_of", "marked_forward"]

_META = "checkpoint"


class Mark(NamedTuple):
    """Of an operation of the forward pass: the ``block`` it belongs to (None: to none), or that it ``enters`` one."""

    block: int | None = None
    enters: bool = False


def checkpoint_names(model: nn.Module, x: Tensor, choices: Sequence[str]) -> tuple[str, ...]:
    """The names of the modules that ``choices`` say, patterns as in a shell (``layers.*``); none within another.

    Raises
    ------
    ModelError
        When a choice names no module.
    ConfigError
        When it names a module that the model, run on ``x``, does not call.
    """
    if not choices:
        return ()
    modules = {name: module for name, module in model.named_modules() if name}
    called = count_calls(model, x, modules)
    chosen: dict[str, None] = {}
    for choice in choices:
        found = fnmatch.filter(modules, choice)
        if not found:
            near = difflib.get_close_matches(choice, modules, 1)
            hint = f"did you mean '{near[0]}'?" if near else "name them as named_modules() does."
            raise ModelError(f"No module is called '{choice}', whose activations were to be computed anew: {hint}")
        if not any(name in called for name in found):
            advice = f"such as '{found[0]}.*'" if isinstance(modules[found[0]], nn.ModuleList) else "not its parts"
            raise ConfigError(f"The model does not call '{found[0]}': checkpoint modules that it calls, {advice}.")
        chosen.update((name, None) for name in found if name in called)
    return tuple(name for name in chosen if not any(name.startswith(f"{other}.") for other in chosen))


def mark_of(node: Node) -> Mark | None:
    """The mark of a node; None outside a forward pass that is marked."""
    found: Mark | None = node.meta.get(_META)
    return found


@contextlib.contextmanager
def marked_forward(module: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Mark what is traced inside as forward, and every call of the modules called ``names`` as a block.

    What a block is given passes through a view, so that it can be told from what the block computes.
    """
    if not names or (graph := _graph()) is None:
        yield
        return
    blocks = _Blocks()
    hooks: list[Any] = []
    for name in names:
        each = module.get_submodule(name)
        hooks.append(each.register_forward_pre_hook(blocks.enter, with_kwargs=True))
        hooks.append(each.register_forward_hook(blocks.leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    _mark(graph, None, Mark())


class _Blocks:
    """The calls of modules as they are made; a call within another belongs to the outer one."""

    def __init__(self) -> None:
        self._calls: list[Node] = []

    def enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        graph = _graph()
        assert graph is not None
        last = _last(graph)
        self._calls.append(last)
        if len(self._calls) > 1:
            return None
        given: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(_viewed, (args, kwargs))
        _mark(graph, last, Mark(enters=True))
        self._calls[-1] = _last(graph)
        return given

    def leave(self, *_: Any) -> None:
        graph, first = _graph(), self._calls.pop()
        if graph is not None and not self._calls:
            _mark(graph, first, Mark(len(graph.nodes)))


def _viewed(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return torch.ops.aten.alias.default(value)
    return value


def _graph() -> Graph | None:
    mode = get_proxy_mode()
    return None if mode is None else mode.tracer.graph


def _last(graph: Graph) -> Node:
    last: Node = next(iter(reversed(graph.nodes)))
    return last


def _mark(graph: Graph, after: Node | None, mark: Mark) -> None:
    """Mark the nodes made ``after`` another that have no mark yet."""
    for node in reversed(graph.nodes):
        if node is after:
            break
        node.meta.setdefault(_META, mark)
