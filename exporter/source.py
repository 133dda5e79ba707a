"""A model ready to be traced, and the example inputs that its programs are traced with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from edge_fl.layout import Axis, Layout
from exporter.losses import Loss

__all__ = ["Source", "Traceable", "parameter_input"]


@dataclass(frozen=True)
class Source:
    """A model and everything that is known of it: where its units are, and what it is trained for."""

    module: nn.Module
    layout: Layout
    producers: tuple[str, ...]
    loss: Loss
    input_shape: tuple[int, ...]
    classes: int

    @property
    def full(self) -> dict[str, int]:
        """Every unit of every block."""
        return dict(self.layout.sizes)


@dataclass(frozen=True)
class Traceable:
    """A program as a flat function of tensors: one argument for each of ``inputs``, one result for each of
    ``outputs``.

    Inputs are ``param.<tensor>`` (kept entries, float32), ``x`` ``[B, ...]`` float32, ``y`` ``[B, ...]``,
    ``sample_weight`` ``[B]`` float32; any other is a float32 scalar (0-d).
    """

    source: Source
    kind: Literal["step", "eval"]
    function: Callable[..., tuple[Tensor, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variant: str = "plain"

    def example(self, counts: Mapping[str, int], batch: int) -> tuple[Tensor, ...]:
        """Inputs of the shapes for ``counts`` kept units of each block and ``batch`` samples."""
        return tuple(self._example(name, counts, batch) for name in self.inputs)

    def dynamic_axes(self, name: str) -> tuple[int, ...]:
        """The axes of an input whose length is not known before it runs: kept units, and the batch."""
        if name in ("x", "y", "sample_weight"):
            return (0,)
        if self.kind == "eval":
            return ()
        axes = self._tensors.get(name, ())
        return tuple(i for i, axis in enumerate(axes) if any(s.block is not None for s in axis))

    @cached_property
    def _tensors(self) -> dict[str, tuple[Axis, ...]]:
        return {parameter_input(tensor.name): tensor.units for tensor in self.source.layout.tensors}

    def _example(self, name: str, counts: Mapping[str, int], batch: int) -> Tensor:
        match name:
            case "x":
                return torch.zeros(batch, *self.source.input_shape)
            case "y":
                target = self.source.loss.target
                return torch.zeros(batch, *target.shape, dtype=getattr(torch, target.dtype))
            case "sample_weight":
                return torch.ones(batch)
        if name not in self._tensors:
            return torch.tensor(1.0)
        sizes = dict(counts)
        return torch.zeros([sum(s.length(sizes) for s in axis) for axis in self._tensors[name]])


def parameter_input(tensor: str) -> str:
    """The name under which programs take and give the tensor."""
    return f"param.{tensor}"
