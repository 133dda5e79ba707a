"""What a model says of its own layout: ``edge_fl_dense`` keeps layers dense, ``edge_fl_layout`` replaces derivation.

Both are attributes of the model's ``nn.Module``; the layout may also be a method that gives it. What is declared is
held against the model, as what is derived is.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from edge_fl.core.errors import EdgeFLError, ModelError, UnsupportedModelError
from edge_fl.core.layout import Axis, Layout
from edge_fl.core.pattern import Pattern
from exporter.equivalence import every_other_unit, layout_tensors, role_of, run_compact, why_different
from exporter.groups import PRODUCERS
from exporter.sentence import first_line

__all__ = ["Declared", "declared_dense", "declared_layout"]

_DENSE = "edge_fl_dense"
_LAYOUT = "edge_fl_layout"


@dataclass(frozen=True)
class Declared:
    """A layout that the model gives; the fields are those of :class:`exporter.derive.Derivation`."""

    layout: Layout
    scaled: tuple[str, ...]
    dense: dict[str, str]


def declared_dense(model: nn.Module, blocks: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Those of ``blocks`` (name to the layers whose outputs its units are) that the model wants dense.

    Raises UnsupportedModelError when it names what has no units, and ModelError when it names nothing.
    """
    wanted = getattr(model, _DENSE, ())
    if not isinstance(wanted, tuple | list) or not all(isinstance(name, str) for name in wanted):
        raise ModelError(f"'{_DENSE}' must be a tuple of the names of modules, not {wanted!r}.")
    held: set[str] = set()
    for name in wanted:
        found = {block for block, layers in blocks.items() if any(_within(name, at) for at in (block, *layers))}
        if not found:
            known = ", ".join(f"'{block}'" for block in blocks)
            raise UnsupportedModelError(
                f"The model's '{_DENSE}' names '{name}', which is no layer with units; there are {known}."
            )
        held |= found
    return frozenset(held)


def _within(outer: str, layer: str) -> bool:
    return layer == outer or layer.startswith(f"{outer}.")


def declared_layout(model: nn.Module, adapted: nn.Module, x: Tensor) -> Declared | None:
    """The layout that ``model`` declares, if it does, held against it block by block.

    Parameters
    ----------
    adapted
        The model as :func:`exporter.adapt.adapt` has it.
    x
        ``[B, ...]``, an input to run it with.

    Raises
    ------
    ModelError
        When what is declared is no layout of this model.
    UnsupportedModelError
        When leaving units out is not the same as zeroing their rows.
    """
    layout = _given(model)
    if layout is None:
        return None
    if getattr(model, _DENSE, ()):
        raise ModelError(
            f"The model has both '{_DENSE}' and '{_LAYOUT}': leave the layers out of the layout instead."
        )
    _same_tensors(layout, adapted)
    for block in layout.blocks:
        reason = why_different(adapted, x, every_other_unit(layout, block.name))
        if reason is not None:
            raise UnsupportedModelError(
                f"The model's '{_LAYOUT}' is wrong on block '{block.name}': {reason}; mend or leave out the block."
            )
    return Declared(layout, _scaled(model, adapted, layout, x), _dense(model, layout))


def _given(model: nn.Module) -> Layout | None:
    given = getattr(model, _LAYOUT, None)
    try:
        layout = given() if callable(given) else given
    except EdgeFLError:
        raise  # a layout that makes no sense says so itself
    except Exception as error:  # the method is the user's code
        raise ModelError(f"The model's '{_LAYOUT}' raised {first_line(error)}.") from error
    if layout is not None and not isinstance(layout, Layout):
        raise ModelError(f"The model's '{_LAYOUT}' is of type '{type(layout).__name__}', not an edge_fl Layout.")
    return layout


def _same_tensors(layout: Layout, model: nn.Module) -> None:
    held = {name: (tuple(tensor.shape), role_of(name)) for name, tensor in layout_tensors(model)}
    named = {tensor.name: (tensor.shape, tensor.role) for tensor in layout.tensors}
    for name in sorted(held.keys() | named.keys()):
        if held.get(name) != named.get(name):
            raise ModelError(
                f"The model's '{_LAYOUT}' has the tensor '{name}' as {_told(named.get(name))} and the model as "
                f"{_told(held.get(name))}: describe every parameter and running statistic as it is."
            )


def _told(tensor: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if tensor is None else f"a {tensor[1]} of shape {tensor[0]}"


def _scaled(model: nn.Module, adapted: nn.Module, layout: Layout, x: Tensor) -> tuple[str, ...]:
    """The modules whose own matrices' rows are units, and whose outputs are fewer when some of these are left out."""
    masks = [every_other_unit(layout, block.name).mask for block in layout.blocks]
    if not masks:
        return ()
    full = _output_shapes(adapted, x, Pattern.full(layout))
    compact = _output_shapes(adapted, x, Pattern(layout, np.logical_and.reduce(masks)))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scaled = []
    for where, module in model.named_modules():
        matrices = [names[id(own)] for own in module.parameters(recurse=False) if own.ndim > 1]
        own_rows = any(_masked(layout.tensor(name).rows) for name in matrices)
        depthwise = getattr(module, "groups", 1) > 1  # its units are those of the layer before, scaled already
        if own_rows and not depthwise and full.get(where) != compact.get(where):
            scaled.append(where)
    return tuple(scaled)


def _output_shapes(model: nn.Module, x: Tensor, pattern: Pattern) -> dict[str, torch.Size]:
    shapes: dict[str, torch.Size] = {}

    def note(name: str, outputs: Tensor | tuple[Tensor, ...]) -> None:
        shapes[name] = (outputs if isinstance(outputs, Tensor) else outputs[0]).shape

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(lambda _, __, outputs, name=name: note(name, outputs))
            hooks.callback(hook.remove)
        run_compact(model, x, pattern)
    return shapes


def _masked(axes: tuple[Axis, ...]) -> bool:
    return any(segment.block is not None for axis in axes for segment in axis)


def _dense(model: nn.Module, layout: Layout) -> dict[str, str]:
    masked = {tensor.name for tensor in layout.tensors if _masked(tensor.rows)}
    held = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        name: "the model's own layout says so"
        for name, module in model.named_modules()
        if isinstance(module, (*PRODUCERS, nn.RNNBase))
        and masked.isdisjoint(held[id(parameter)] for parameter in module.parameters(recurse=False))
    }
