"""Whether leaving units out is the same as zeroing their rows, found by running the model both ways."""

import copy
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
from exporter.double_precision import double_precision
from exporter.frozen import STATISTICS
from exporter.own_outputs import flat_outputs
from exporter.written_out import written_out

__all__ = [
    "every_other_unit",
    "layout_tensors",
    "random_weights",
    "role_of",
    "run_compact",
    "run_with",
    "weights_of",
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
    weights = weights_of(model)
    full = run_with(model, with_rows_at_zero(weights, pattern), x)
    try:
        compact = run_compact(model, x, pattern)
    except Exception as error:  # the forward pass is the user's code
        if normalised_by is not None:
            return f"'{normalised_by}' normalises over its units"
        return f"the model does not run without some of its units ({str(error).strip().splitlines()[0]})"
    if compact.shape != full.shape:
        return "it is the output layer, whose rows are never dropped"
    if _apart(full, compact) and not _same_in_double_precision(model, x, pattern):
        return "zeroing its rows is not leaving its units out (an activation that does not map 0 to 0?)"
    return None


def _apart(full: Tensor, compact: Tensor) -> bool:
    return bool((compact - full).abs().max() > _TOLERANCE * (1 + full.abs().max()))


def _same_in_double_precision(model: nn.Module, x: Tensor, pattern: Pattern) -> bool:
    """Whether the two only differ by rounding, which BatchNorm over a few numbers makes large in a deep model."""
    weights = weights_of(model)
    double, x = copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x
    try:
        with double_precision():
            full = run_with(double, with_rows_at_zero(weights, pattern), x, torch.float64)
            compact = run_with(double, Selection.of(pattern, "units").gather(weights), x, torch.float64)
    except Exception:  # the forward pass is the user's code, and may insist on single precision
        return False
    return not _apart(full, compact)


def run_compact(model: nn.Module, x: Tensor, pattern: Pattern) -> Tensor:
    """The outputs under what ``pattern`` keeps of random weights; raises what torch raises when that does not run."""
    return run_with(model, Selection.of(pattern, "units").gather(weights_of(model)), x)


def run_with(
    model: nn.Module, weights: dict[str, NDArray[np.float32]], x: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The outputs under these weights and statistics; raises what torch raises when that does not run."""
    with torch.no_grad(), written_out():
        tensors = {name: torch.from_numpy(array).to(dtype) for name, array in weights.items()}
        return flat_outputs(functional_call(model, tensors, (x,)))


def with_rows_at_zero(weights: dict[str, NDArray[np.float32]], pattern: Pattern) -> dict[str, NDArray[np.float32]]:
    """The weights and statistics of the units that ``pattern`` keeps, and zeros for those that it drops."""
    rows = Selection.of(pattern, "rows")
    zeroed = {name: np.zeros_like(array) for name, array in weights.items()}
    rows.scatter(rows.gather(weights), zeroed)
    return zeroed


def weights_of(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Random ones for every parameter and running statistic."""
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
