"""The layout of a model: proposed by its graph, kept where running it agrees.

A block is kept when leaving its units out gives what zeroing their rows gives. That is what makes compact
execution exact, and it decides by itself what stays dense: an activation that does not map 0 to 0, a
LayerNorm over the units, a shape written into the forward pass, the output layer. A model may have a say in it
(:mod:`exporter.declared`).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_fl.core.layout import Axis, Block, Layout, Mode, Segment
from edge_fl.core.layout import Tensor as Spec
from exporter.adapt import adapt
from exporter.declared import declared_dense, declared_layout
from exporter.equivalence import every_other_unit, layout_tensors, role_of, why_different
from exporter.frozen import freeze, frozen_names, plain_buffers
from exporter.groups import PRODUCERS, Group, propose_groups
from exporter.heads import head_variants, sibling_heads
from exporter.module_names import within
from exporter.multihead import can_replace
from exporter.personal import set_apart
from exporter.scale_places import scale_places
from exporter.segments import FREE, find_segments

__all__ = ["Derivation", "derive"]


@dataclass(frozen=True)
class Derivation:
    """A layout, and how it came about.

    ``scaled`` are the modules whose outputs a step multiplies (:mod:`exporter.scale_places`), ``dense`` the layers
    that no block masks, each with the reason. ``personal`` are the names of what each device keeps to itself.
    """

    layout: Layout
    scaled: tuple[str, ...]
    dense: dict[str, str]
    personal: frozenset[str] = frozenset()

    @property
    def apart(self) -> Layout:
        """The layout of a bundle, which has personal tensors apart; raises UnsupportedModelError where it cannot."""
        return set_apart(self.layout, self.personal)

    @property
    def dense_by_reason(self) -> dict[str, list[str]]:
        """The dense layers by what each is dense for."""
        found: dict[str, list[str]] = {}
        for layer, reason in self.dense.items():
            found.setdefault(reason, []).append(layer)
        return found


def derive(
    model: nn.Module,
    x: Tensor,
    read: Collection[str] = (),
    closed: Callable[[str], str | None] = lambda _: None,
    *,
    personal: frozenset[str] = frozenset(),
) -> Derivation:
    """Derive blocks and axes of a model that :func:`exporter.accept.accept` let through.

    Parameters
    ----------
    x
        ``[B, ...]``, an input to run the model with.
    read
        The names of the tensors that its forward pass reads.
    closed
        Of a block's name, why its units must stay; None where they need not.
    personal
        The names of the tensors that each device keeps to itself.

    Raises
    ------
    UnsupportedModelError
        When the model's structure cannot be followed, or what it declares is not so.
    """
    adapted, frozen, buffers = adapt(model).train(), frozen_names(model), plain_buffers(model, read)
    declared = declared_layout(model, adapted, x)
    if declared is not None:
        scaled = scale_places(model, adapted, x, declared.layout, declared.scaled)
        return Derivation(freeze(declared.layout, frozen, buffers), scaled, declared.dense, personal)
    candidates, unfollowed = _proposed(model, x, _Judge(adapted, x, frozen))
    groups = [candidate.group for candidate in candidates]
    dense, kept = dict(unfollowed), list[Group]()
    proposed = {group.name: group.producers for group in groups}
    wished = declared_dense(model, {**{name: (name,) for name in unfollowed}, **proposed})
    for group, alone in candidates:
        reason = "the model says so" if group.name in wished else closed(group.name) or _frozen(group, frozen)
        reason = reason or _personal(group, personal)
        reason = reason or _conflict(group, groups) or alone
        if reason is None:
            kept.append(group)
        dense.update(dict.fromkeys(group.producers, reason) if reason else {})
    called = {*unfollowed, *(name for group in groups for name in group.producers)}
    called |= _read_by_attention(model)
    for name, module in model.named_modules():
        if isinstance(module, (*PRODUCERS, nn.RNNBase)) and name not in called:
            dense[name] = "the forward pass does not call it"
        if isinstance(module, nn.RNNCellBase):
            dense[name] = "nobody follows the units of a cell: use nn.LSTM, GRU or RNN, or declare a layout"
    producers = (name for group in kept if not group.heads for name in group.producers)
    layers = tuple(name for name in producers if not _depthwise(model.get_submodule(name)))
    layout = _layout(adapted, kept)
    scaled = scale_places(model, adapted, x, layout, layers)
    return Derivation(freeze(layout, frozen, buffers), scaled, dense, personal)


def _read_by_attention(model: nn.Module) -> set[str]:
    """The layers that torch's attention reads and does not call, with those within an adapted one."""
    attentions = [(name, module) for name, module in model.named_modules() if can_replace(module)]
    layers = [(within(name, "out_proj"), module.out_proj) for name, module in attentions]
    return {inner for name, layer in layers for inner, _ in layer.named_modules(prefix=name)}


class _Candidate(NamedTuple):
    """A group, and why it does not hold even ``alone``; None when it does."""

    group: Group
    alone: str | None


def _proposed(model: nn.Module, x: Tensor, judge: "_Judge") -> tuple[list[_Candidate], dict[str, str]]:
    """Groups of which some may hold, and layers that nobody could follow; of attention whole heads where those hold."""
    groups, unfollowed, head_sizes = propose_groups(model, x)
    found = [heads for heads in map(judge.judged, sibling_heads(model, head_sizes)) if heads.alone is None]
    taken = {name for heads in found for name in heads.group.producers}
    for whole in map(judge.judged, (group for group in groups if taken.isdisjoint(group.producers))):
        variants = () if whole.alone is None else map(judge.judged, head_variants(whole.group, head_sizes))
        found.append(next((heads for heads in variants if heads.alone is None), whole))
    return found, {name: why for name, why in unfollowed.items() if name not in taken}


@dataclass(frozen=True)
class _Judge:
    """What a group is held against: the adapted model, an input to run it with, and what is frozen."""

    model: nn.Module
    x: Tensor
    frozen: frozenset[str]

    def judged(self, group: Group) -> _Candidate:
        """The group, held against the model by itself, which takes two runs of the model."""
        reason = _frozen(group, self.frozen) or _conflict(group, []) or _differs(self.model, self.x, group)
        return _Candidate(group, reason)


def _depthwise(module: nn.Module) -> bool:
    """Its units are those of the layer before it, which are scaled already."""
    return getattr(module, "groups", 1) > 1


def _frozen(group: Group, frozen: Collection[str]) -> str | None:
    """Of a dropped unit nothing may be left, so a device trains all of its rows or none."""
    shares = any(name in frozen for name, _ in group.own)
    return "a frozen tensor has the same units, and keeps all of them" if shares else None


def _personal(group: Group, personal: Collection[str]) -> str | None:
    """What methods learn of a unit they learn of its rows, which nobody would send."""
    alone = bool(group.own) and all(name in personal for name, _ in group.own)
    return "its units have rows in personal tensors alone" if alone else None


def _conflict(group: Group, others: list[Group]) -> str | None:
    """A tied tensor whose uses disagree stays dense, and so does a tensor that no segments describe."""
    for other in others:
        shared = group.owners.keys() & other.owners.keys() if other is not group else set()
        for key in shared:
            if np.any((group.owners[key] >= 0) & (other.owners[key] >= 0)):
                return f"'{key[0]}' is shared with '{other.name}', whose units are others"
    for (name, axis), owners in group.owners.items():
        if _axis([(group, owners)], len(owners)) is None:
            return f"axis {axis} of '{name}' mixes its units in no regular order"
    return None


def _differs(model: nn.Module, x: Tensor, group: Group) -> str | None:
    """Why leaving the group's units out is not the same as zeroing their rows; None when it is."""
    layout = _layout(model, [group])
    return why_different(model, x, every_other_unit(layout, group.name), normalised_by=group.normalised_by)


def _layout(model: nn.Module, groups: list[Group]) -> Layout:
    tensors = []
    for name, tensor in layout_tensors(model):
        shape = tuple(tensor.shape)
        rows, units = (
            tuple(_tensor_axis(name, axis, length, groups, mode) for axis, length in enumerate(shape))
            for mode in _MODES
        )
        tensors.append(Spec(name=name, shape=shape, rows=rows, units=units, role=role_of(name)))
    return Layout(tuple(Block(group.name, group.size, group.recurrent) for group in groups), tuple(tensors))


_MODES: tuple[Mode, Mode] = ("rows", "units")


def _tensor_axis(name: str, axis: int, length: int, groups: list[Group], mode: Mode) -> Axis:
    key = (name, axis)
    claims = [(g, g.owners[key]) for g in groups if key in (g.owners if mode == "units" else g.own)]
    found = _axis(claims, length)
    return found if found is not None else (Segment(None, 1, length),)


def _axis(claims: list[tuple[Group, NDArray[np.int64]]], length: int) -> Axis | None:
    blocks = np.full(length, FREE, dtype=np.int64)
    units = np.full(length, FREE, dtype=np.int64)
    for number, (_, owners) in enumerate(claims):
        blocks[owners >= 0] = number
        units[owners >= 0] = owners[owners >= 0]
    names = tuple(group.name for group, _ in claims)
    return find_segments(blocks, units, names, tuple(group.size for group, _ in claims))
