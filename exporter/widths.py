"""What a model costs at each width: parameters and multiply-accumulates, counted on the kept entries alone."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from edge_fl.core.bundle import Cost
from edge_fl.core.frozen import cut_frozen
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout
from edge_fl.core.selection import Selection
from edge_fl.wire.sizes import pattern_at, size_at
from exporter.costs import count_macs
from exporter.features import Cut, Features
from exporter.frozen_dtype import arrays_of, widened

__all__ = ["costs_at"]


def costs_at(
    model: nn.Module, layout: Layout, sample: Input, widths: Iterable[int], *, cut: Cut | None = None
) -> tuple[Cost, ...]:
    """The costs at full width and at each of ``widths`` (thousandths), widest first.

    Parameters
    ----------
    model
        The user's own, whose tensors ``layout`` names.
    sample
        One sample of its input.
    cut
        What lies below is computed once a sample, and is no cost of a step.
    """
    wanted, dtype = sorted({1000, *widths}, reverse=True), getattr(torch, sample.dtype)
    below = 0 if cut is None else count_macs(Features(model, cut), input_shape=sample.shape, input_dtype=dtype)
    found = {width: _macs(model, layout, sample, width) for width in wanted}
    return tuple(
        Cost(width, size_at(layout, width).parameters, None if macs is None else macs - below)
        for width, macs in found.items()
    )


def _macs(model: nn.Module, layout: Layout, sample: Input, width: int) -> int | None:
    full = {tensor.name: np.zeros(tensor.shape, dtype=np.float32) for tensor in layout.tensors}
    kept = Selection.of(pattern_at(layout, width), "units").gather(full)
    tensors = {tensor.name: torch.from_numpy(kept[tensor.name]) for tensor in layout.parameters}
    frozen = cut_frozen(arrays_of(model, layout), pattern_at(layout, width))
    tensors.update(widened({name: torch.from_numpy(array) for name, array in frozen.items()}))
    dtype = getattr(torch, sample.dtype)
    try:
        return count_macs(model, input_shape=sample.shape, input_dtype=dtype, tensors=tensors)
    except (RuntimeError, ValueError):  # what torch's own layers say to sizes that only ours can take
        return None
