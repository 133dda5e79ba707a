"""Modules whose activations a step computes a second time, and which operations of a trace belong to them.

:mod:`exporter.passes.recompute` reads the marks that a trace is given here.
"""

import contextlib
import difflib
import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from edge_fl.core.errors import ConfigError, ModelError
from exporter.sentence import some_names
from exporter.written_out import written_out

__all__ = ["Mark", "checkpoint_names", "mark_of", "marked_forward", "with_marks"]

_META = "checkpoint"
_SHOWN = 8  # names in an error


class Mark(NamedTuple):
    """Of an operation of a forward pass: which ``forward`` pass it is, and the ``block`` that it belongs to, if any.

    Both are numbers of no meaning. ``enters`` says that what the model is given passes through it.
    """

    forward: int
    block: int | None = None
    enters: bool = False


def mark_of(node: Node) -> Mark | None:
    """The mark of a node; None outside a forward pass that is marked."""
    found: Mark | None = node.meta.get(_META)
    return found


def checkpoint_names(model: nn.Module, x: Tensor, choices: Sequence[str]) -> tuple[str, ...]:
    """The names of the modules that ``choices`` say, patterns as in a shell (``layers.*``); none within another.

    Parameters
    ----------
    model
        As :func:`exporter.adapt.adapt` makes it, in training; it is run on ``x``.

    Raises
    ------
    ModelError
        When a choice names no module.
    ConfigError
        When it names a module that the model does not call.
    """
    if not choices:
        return ()
    modules = {name: module for name, module in model.named_modules() if name}
    calls = _count_calls(model, x, modules)
    chosen: dict[str, None] = {}
    for choice in choices:
        found = fnmatch.filter(modules, choice)
        if not found:
            near = difflib.get_close_matches(choice, modules, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {some_names(list(modules), most=_SHOWN)}."
            raise ModelError(f"No module is called '{choice}', whose activations were to be computed anew: {hint}")
        if not any(calls[name] for name in found):
            inner = any(calls[name] for name in modules if name.startswith(f"{found[0]}."))
            advice = f"checkpoint its parts, '{found[0]}.*'." if inner else "leave it out."
            raise ConfigError(f"The model's forward does not call '{found[0]}' in training: {advice}")
        chosen.update((name, None) for name in found if calls[name])
    return tuple(name for name in chosen if not any(name.startswith(f"{other}.") for other in chosen))


def _count_calls(model: nn.Module, x: Tensor, modules: Mapping[str, nn.Module]) -> Counter[str]:
    calls = Counter[str]()
    with contextlib.ExitStack() as stack:
        for name, module in modules.items():
            handle = module.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
            stack.callback(handle.remove)
        with torch.no_grad(), written_out():
            model(x)
    return calls


@contextlib.contextmanager
def marked_forward(module: nn.Module, names: Sequence[str]) -> Iterator[Callable[[Tensor], Tensor]]:
    """Mark what is traced inside as one forward pass, and every call of the modules called ``names`` as a block.

    Gives what the model's input has to pass through.
    """
    if not names or (graph := _graph()) is None:
        yield lambda x: x
        return
    before, forward = _last(graph), len(graph.nodes)

    def enter(x: Tensor) -> Tensor:
        last = _last(graph)
        entered: Tensor = torch.ops.aten.alias.default(x)
        _mark(graph, last, Mark(forward, enters=True))
        return entered

    blocks, hooks = _Blocks(graph, forward), list[Any]()
    for name in names:
        each = module.get_submodule(name)
        hooks.append(each.register_forward_pre_hook(blocks.enter))
        hooks.append(each.register_forward_hook(blocks.leave, always_call=True))
    try:
        yield enter
    finally:
        for hook in hooks:
            hook.remove()
    _mark(graph, before, Mark(forward))


class _Blocks:
    """The calls of modules as they are made; a call within another belongs to the outer one."""

    def __init__(self, graph: Graph, forward: int) -> None:
        self._graph, self._forward = graph, forward
        self._calls: list[Node] = []

    def enter(self, *_: Any) -> None:
        self._calls.append(_last(self._graph))

    def leave(self, *_: Any) -> None:
        first = self._calls.pop()
        if not self._calls:
            _mark(self._graph, first, Mark(self._forward, len(self._graph.nodes)))


def with_marks(graph: GraphModule) -> Callable[..., Any]:
    """``graph`` as a function that gives its marks to what is traced of it."""
    if any(mark_of(node) for node in graph.graph.nodes):
        return _Marking(graph).run
    return graph


class _Marking(Interpreter):
    def run_node(self, n: Node) -> Any:
        """Run it, and mark what has been traced by it as it is."""
        graph, mark = _graph(), mark_of(n)
        last = None if graph is None else _last(graph)
        result = super().run_node(n)
        if graph is not None and mark is not None:
            _mark(graph, last, mark)
        return result


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
