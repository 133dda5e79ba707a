"""A model ready to be traced, and the example inputs that its programs are traced with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge_fl.core.bundle import FROZEN_TENSOR, PLAIN_SGD, BatchNormPolicy, Optimizer
from edge_fl.core.dropout import Dropout
from edge_fl.core.inputs import Input, NamedInput
from edge_fl.core.layout import Axis, Layout, Segment
from edge_fl.core.layout import Tensor as Spec
from exporter.frozen_dtype import widened
from exporter.losses import Loss
from exporter.open_lengths import BATCH, Length, length_of
from exporter.own_outputs import Outputs, predictions

__all__ = [
    "DropoutPlace",
    "Port",
    "Source",
    "Step",
    "Traceable",
    "batch_ports",
    "dropout_ports",
    "frozen_ports",
    "loss_ports",
    "scalar",
    "tensor_ports",
    "width_ports",
]


@dataclass(frozen=True)
class DropoutPlace:
    """One call of dropout in a forward pass, and how its mask ``[B, *shape]`` lies in what the call drops.

    The batch is axis ``batch_axis`` there. Where ``merged``, the first axis there is the batch and the mask's
    first, and ``batch_axis`` says which of them is the outer one.
    """

    dropout: Dropout
    batch_axis: int
    merged: bool

    def arranged(self, mask: Tensor) -> Tensor:
        """``mask`` as the call needs it."""
        moved = mask.movedim(0, self.batch_axis)
        return moved.flatten(0, 1) if self.merged else moved


@dataclass(frozen=True)
class Source:
    """A model and everything that is known of it: where its units are, and how it is trained.

    ``module`` takes every size from the tensors it is called with (:func:`exporter.adapt.adapt`); ``original`` is
    the user's own. ``scaled`` are the modules whose outputs a step multiplies by ``scale``, ``inner`` the weights that
    it multiplies besides (:func:`exporter.recurrent.scaling.inner_weights`). Under the policy ``per-width`` the
    statistics of ``layout`` have a row for each of ``statistic_widths``, those of the modules none.
    ``inputs`` are those of a model that takes several by name (:mod:`exporter.named_inputs`); of one without a name
    ``vocabulary`` says how many tokens there are (0: it is none, or nobody knows). ``below`` are frozen tensors that no
    step reads, since it takes features (:mod:`exporter.features`). ``dropout`` are the calls of dropout of ``module``'s
    forward pass in training, in order; of one that is None every entry is kept (:mod:`exporter.dropout_places`). Where
    ``dropout`` itself is None, nothing is dropped.
    ``classes_first`` says that outputs are ``[B, C, ...]`` where samples have several targets, and not ``[B, ..., C]``.
    ``micro_batch`` is how many samples a step looks at together (0: all of its batch). ``checkpoint`` are the modules
    whose activations a step computes anew (:mod:`exporter.checkpoint`).
    """

    module: nn.Module
    original: nn.Module
    layout: Layout
    scaled: tuple[str, ...]
    loss: Loss
    input: Input
    target: Input
    classes: int
    optimizer: Optimizer = PLAIN_SGD
    batch_norm: BatchNormPolicy = "none"
    statistic_widths: tuple[int, ...] = ()
    inputs: tuple[NamedInput, ...] = ()
    vocabulary: int = 0
    below: frozenset[str] = frozenset()
    dropout: tuple[DropoutPlace | None, ...] | None = None
    classes_first: bool = False
    inner: tuple[str, ...] = ()
    micro_batch: int = 0
    checkpoint: tuple[str, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Those of the axes of one sample, which no axis with units may share in an example."""
        return (*self.input.shape, *(length for each in self.inputs for length in each.shape))

    @property
    def frozen(self) -> tuple[Spec, ...]:
        """The frozen tensors that programs read."""
        return tuple(tensor for tensor in self.layout.frozen if tensor.name not in self.below)

    def outputs(self, module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Outputs:
        """What ``module``, this source's own or a copy, gives for ``x`` with ``tensors`` in the place of its own."""
        # Of no meaning, and read by nothing that is returned: a trace would take the module's own for constants.
        below = [tensor for tensor in self.layout.frozen if tensor.name in self.below]
        unread = {t.name: x.new_zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in below}
        outputs: Outputs = functional_call(module, widened({**unread, **tensors}), (x,))
        return outputs

    def predictions(self, outputs: Outputs) -> Tensor:
        """What is scored: ``[B, ..., C]`` of classes, wherever the model has their axis."""
        found = predictions(outputs)
        return found.movedim(1, -1) if self.classes_first else found

    @property
    def dropped(self) -> tuple[Dropout, ...]:
        """Where the model drops, and a step takes a mask."""
        return tuple(place.dropout for place in self.dropout or () if place is not None)

    @property
    def full(self) -> dict[str, int]:
        """Every unit of every block."""
        return dict(self.layout.sizes)

    @property
    def tracked(self) -> tuple[Spec, ...]:
        """The statistics that a step gives anew."""
        statistics = self.layout.statistics
        return statistics if self.batch_norm in ("tracked", "per-width") else ()


@dataclass(frozen=True)
class Port:
    """One input of a program: ``axes`` tell its shape, after the batch axis where it is ``batched``."""

    name: str
    axes: tuple[Axis, ...] = ()
    dtype: torch.dtype = torch.float32
    batched: bool = False

    def example(self, counts: Mapping[str, int], batch: int) -> Tensor:
        """A tensor of the shape for ``counts`` kept units of each block and ``batch`` samples."""
        sizes = dict(counts)
        shape = [sum(segment.length(sizes) for segment in axis) for axis in self.axes]
        filled = torch.zeros if self.batched and self.axes else torch.ones
        return filled([batch, *shape] if self.batched else shape, dtype=self.dtype)


def tensor_ports(layout: Layout) -> tuple[Port, ...]:
    """One port ``tensor.NAME`` for the kept entries of every tensor of ``layout``."""
    return tuple(Port(f"tensor.{tensor.name}", tensor.units) for tensor in layout.tensors)


def frozen_ports(source: Source) -> tuple[Port, ...]:
    """One port ``frozen.NAME`` for what is kept of every tensor that is read and never trained."""
    return tuple(Port(f"{FROZEN_TENSOR}{t.name}", t.units, getattr(torch, t.dtype)) for t in source.frozen)


def batch_ports(source: Source) -> tuple[Port, ...]:
    """The ports ``x``, ``y`` and ``sample_weight``, and ``width`` where there are statistics for each."""
    x, y = (
        Port(name, tuple((Segment(None, inner=n),) for n in what.shape), getattr(torch, what.dtype), batched=True)
        for name, what in (("x", source.input), ("y", source.target))
    )
    return (x, y, Port("sample_weight", batched=True), *width_ports(source, "width"))


def dropout_ports(source: Source) -> tuple[Port, ...]:
    """One port ``dropout.NAME`` for the masks of every place where the model drops."""
    return tuple(Port(each.input, each.mask.units, batched=True) for each in source.dropped)


def width_ports(source: Source, name: str) -> tuple[Port, ...]:
    """The port ``name`` of a width that BatchNorm has statistics for, where it has them for each."""
    axis = (Segment(None, inner=len(source.statistic_widths)),)
    return (Port(name, (axis,)),) if source.statistic_widths else ()


def loss_ports(source: Source) -> tuple[Port, ...]:
    """What the loss takes besides outputs and targets, ``[classes]`` float32 each."""
    return tuple(Port(name, ((Segment(None, inner=source.classes),),)) for name in source.loss.inputs)


def scalar(name: str) -> Port:
    """A float32 number (0-d)."""
    return Port(name)


@dataclass(frozen=True)
class Traceable:
    """A program as a flat function of tensors: one argument for each of ``ports``, one result for each of
    ``outputs``.
    """

    source: Source
    kind: Literal["step", "eval", "forward", "features"]
    function: Callable[..., tuple[Tensor, ...]]
    ports: tuple[Port, ...]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the ports."""
        return tuple(port.name for port in self.ports)

    @property
    def multiple(self) -> int:
        """What batches are multiples of."""
        return (self.kind == "step" and self.source.micro_batch) or 1

    def example(self, counts: Mapping[str, int], batch: int) -> tuple[Tensor, ...]:
        """Inputs of the shapes for ``counts`` kept units of each block and ``batch`` samples."""
        return tuple(port.example(counts, batch) for port in self.ports)

    def open_lengths(self, name: str) -> dict[int, Length]:
        """The axes of an input whose length is not known before it runs: kept units, and the batch."""
        port = next(port for port in self.ports if port.name == name)
        batch = {0: BATCH.times(self.multiple)} if port.batched else {}
        if self.kind in ("eval", "features"):
            return batch
        lengths = ((i, length_of(axis)) for i, axis in enumerate(port.axes, len(batch)))
        return {**batch, **{i: length for i, length in lengths if length.factors}}


@dataclass(frozen=True)
class Step(Traceable):
    """A train step, and what it descends by itself: for runtimes that differentiate and update in their own way.

    ``objective`` has the ports of the step but the optimiser's, and gives ``minimised``, ``loss`` (what is reported)
    and the tracked statistics anew; ``trained`` are those of its ports that the step moves.
    """

    variant: str
    objective: Traceable
    trained: tuple[str, ...]
