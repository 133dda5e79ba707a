"""Whether leaving units out is the same as zeroing their rows, found by running the model both ways."""

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Bitmask, Pattern
from edge_fl.core.selection import Selection
from exporter.frozen import STATISTICS
from exporter.own_outputs import flat_outputs
from exporter.written_out import written_out

__all__ = [
    "every_other_unit",
    "layout_tensors",
    "random_weights",
    "role_of",
    "run_compact",
    "why_different",
    "with_rows_at_zero",
]

_TOLERANCE = 1e-5


def layout_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """What a layout names: the parameters, and the running statistics."""
    buffers = model.named_buffers()
    return [*model.named_parameters(), *((n, b) for n, b in buffers if role_of(n) == "statistic")]


def role_of(name: str) -> Literal["parameter", "statistic"]:
    """The role of the tensor of that name."""
    return "statistic" if name.rpartition(".")[2] in STATISTICS else "parameter"


def every_other_unit(layout: Layout, block: str) -> Pattern:
    """Drop every other unit of ``block``, or its only one, and no unit of any other."""
    masks = [np.ones(found.size, dtype=np.bool_) for found in layout.blocks]
    for mask, found in zip(masks, layout.blocks, strict=True):
        if found.name == block:
            mask[:: 2 if found.size > 1 else 1] = False
    return Pattern(layout, np.concatenate(masks), Bitmask())


def why_different(
    model: nn.Module, x: Tensor, pattern: Pattern, *, normalised_by: str | None = None
) -> str | None:
    """Why leaving out what ``pattern`` drops is not the same as zeroing its rows; None when it is.

    Parameters
    ----------
    model
        One of :func:`exporter.adapt.adapt`.
    x
        ``[B, ...]``, an input to run it with.
    normalised_by
        The module that normalises over these units, if one is known to.
    """
    weights = _weights_of(model)
    full = _run(model, with_rows_at_zero(weights, pattern), x)
    try:
        compact = run_compact(model, x, pattern)
    except Exception as error:  # the forward pass is the user's code
        if normalised_by is not None:
            return f"'{normalised_by}' normalises over its units"
        return f"the model does not run without some of its units ({str(error).strip().splitlines()[0]})"
    if compact.shape != full.shape:
        return "it is the output layer, whose rows are never dropped"
    if (compact - full).abs().max() > _TOLERANCE * (1 + full.abs().max()):
        return "zeroing its rows is not leaving its units out (an activation that does not map 0 to 0?)"
    return None


def run_compact(model: nn.Module, x: Tensor, pattern: Pattern) -> Tensor:
    """The outputs under what ``pattern`` keeps of random weights; raises what torch raises when that does not run."""
    return _run(model, Selection.of(pattern, "units").gather(_weights_of(model)), x)


def _run(model: nn.Module, weights: dict[str, NDArray[np.float32]], x: Tensor) -> Tensor:
    with torch.no_grad(), written_out():
        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        return flat_outputs(functional_call(model, tensors, (x,)))


def with_rows_at_zero(weights: dict[str, NDArray[np.float32]], pattern: Pattern) -> dict[str, NDArray[np.float32]]:
    """The weights and statistics of the units that ``pattern`` keeps, and zeros for those that it drops."""
    rows = Selection.of(pattern, "rows")
    zeroed = {name: np.zeros_like(array) for name, array in weights.items()}
    rows.scatter(rows.gather(weights), zeroed)
    return zeroed


def _weights_of(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    return random_weights((name, tuple(tensor.shape)) for name, tensor in layout_tensors(model))


def random_weights(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, NDArray[np.float32]]:
    """Weights of these names and shapes that hide nothing: behind a layer of zeros all blocks would look alike."""
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in tensors:
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else 1
        weights[name] = (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
        if name.endswith("running_var"):
            weights[name] = np.abs(weights[name]) + 0.5
    return weights
