"""Where a step multiplies by its scale: behind what would normalise the factor away."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edge_fl.core.layout import Layout
from exporter.equivalence import run_with, weights_of
from exporter.frozen import BATCH_NORMS
from exporter.module_names import within
from exporter.own_forward import activates
from exporter.recurrent.scaling import blocks_of
from exporter.recurrent.states import LayerStates

__all__ = ["NORMS", "scale_places"]

NORMS = (*BATCH_NORMS, nn.GroupNorm)
"""Layers that take a factor of their inputs out again, and keep the units."""


def scale_places(
    model: nn.Module, adapted: nn.Module, x: Tensor, layout: Layout, producers: tuple[str, ...]
) -> tuple[str, ...]:
    """The modules whose outputs a step multiplies: those of ``producers``, or the norms behind them.

    BatchNorm and GroupNorm take a factor of their inputs out again. So of the layers and norms with rows of a block's
    units, each is a place whose outputs reach a layer that reads the units with no further norm of the block between.
    The model is run to find that out; a block without norms keeps its producers.

    Parameters
    ----------
    adapted
        The model as :func:`exporter.adapt.adapt` has it.
    x
        ``[B, ...]``, an input to run it with.
    producers
        The layers whose outputs are droppable units, without the depthwise ones.
    """
    order = {name: at for at, (name, _) in enumerate(model.named_modules())}
    owners = {block.name: _owners(layout, block.name) for block in layout.blocks}
    chains = {block: chain for block, found in owners.items() if (chain := _chain(model, *found, producers))}
    if not chains:  # a large model without norms needs no weights to be drawn
        return tuple(sorted({*producers}, key=order.__getitem__))
    run = partial(run_with, adapted, weights_of(adapted), x)
    taken, given = set[tuple[str, str]](), set[str]()
    for block, chain in chains.items():
        if behind := _not_normalised(adapted, run, chain):
            taken |= {(name, block) for name in chain.places - chain.norms}
            given |= {_behind_parameters(model, name) for name in behind}
    # A recurrent module stays where norms follow some of its layers alone: those take a factor out once more.
    left = {name for block, (own, _) in owners.items() for name in own if (name, block) not in taken}
    kept = {*producers} - ({name for name, _ in taken} - left)
    return tuple(sorted(kept | given, key=order.__getitem__))


def _behind_parameters(model: nn.Module, place: str) -> str:
    """The same, or what a norm with an activation has between its parameters and the activation."""
    return within(place, "drop") if activates(model.get_submodule(place)) else place


def _chain(model: nn.Module, own: set[str], readers: set[str], producers: tuple[str, ...]) -> "_Chain | None":
    """What is between a block's layers and what reads them; None without such layers or without norms."""
    norms = {name for name in own if isinstance(model.get_submodule(name), NORMS)}
    layers = own & {*producers}
    return _Chain(layers | norms, norms, readers) if layers and norms else None


def _owners(layout: Layout, block: str) -> tuple[set[str], set[str]]:
    """The modules whose rows are units, of the block among them, and those whose columns read the block's."""
    own, readers = set[str](), set[str]()
    for tensor in layout.tensors:
        module = tensor.name.rpartition(".")[0]
        for rows, units in zip(tensor.rows, tensor.units, strict=True):
            if block in blocks_of(rows) and all(segment.block for segment in rows):
                own.add(module)
            elif block in blocks_of(units):
                readers.add(module)
    return own, readers


@dataclass(frozen=True)
class _Chain:
    """The layers and norms of a block, the norms among them, and the layers that read its units."""

    places: set[str]
    norms: set[str]
    readers: set[str]


def _not_normalised(adapted: nn.Module, run: Callable[[], object], chain: _Chain) -> set[str]:
    """Those whose outputs change what a reader gets while the other norms, and the readers, give what they gave.

    None where a reader is never called: its weight is read another way.
    """
    before = _Calls()
    before.note(adapted, run, chain.norms | chain.readers)
    if not all(before.inputs[name] for name in chain.readers):
        return set()
    found = set[str]()
    for place in chain.places:
        after = _Calls(before.outputs, changed=place)
        after.note(adapted, run, chain.norms | chain.readers | {place})
        if not all(_same(before.inputs[name], after.inputs[name]) for name in chain.readers):
            found.add(place)
    return found


def _same(these: list[list[Tensor]], those: list[list[Tensor]]) -> bool:
    return all(torch.equal(*pair) for calls in zip(these, those, strict=True) for pair in zip(*calls, strict=True))


class _Calls:
    """What modules got and gave, call by call.

    Where it is given the outputs of an earlier run, modules give these once more, and ``changed`` gives something else.
    """

    def __init__(self, given: Mapping[str, list[Any]] | None = None, *, changed: str | None = None) -> None:
        self.inputs: dict[str, list[list[Tensor]]] = defaultdict(list)
        self.outputs: dict[str, list[Any]] = defaultdict(list)
        self._given, self._changed = given or {}, changed

    def note(self, model: nn.Module, run: Callable[[], object], names: set[str]) -> None:
        """Run ``model`` once, and note the calls of its modules ``names``."""
        with ExitStack() as hooks:
            for name in names:
                hook = model.get_submodule(name).register_forward_hook(self._hook(name), with_kwargs=True)
                hooks.callback(hook.remove)
            run()

    def _hook(self, name: str) -> Callable[..., Any]:
        def called(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], outputs: Any) -> Any:
            earlier, call = self._given.get(name, []), len(self.inputs[name])
            self.inputs[name].append([e.clone() for e in (*args, *named.values()) if isinstance(e, Tensor)])
            self.outputs[name].append(_copied(outputs))
            if name == self._changed:
                return _other(outputs)
            return _copied(earlier[call]) if call < len(earlier) else outputs

        return called


def _copied(outputs: Any) -> Any:
    """What stays when the forward pass writes into ``outputs``."""
    if isinstance(outputs, tuple):
        return tuple(map(_copied, outputs))
    return outputs.clone() if isinstance(outputs, Tensor) else outputs


def _other(outputs: Any) -> Any:
    """Outputs, and last states among them, of which an activation lets others through."""
    match outputs:
        case tuple():
            return tuple(map(_other, outputs))
        case LayerStates():
            return LayerStates([1 - state for state in outputs])
        case Tensor():
            return 1 - outputs
    return outputs
