"""What a train step must compute, from torch's autograd on the full model.

It shares nothing with the exported programs but the model's own forward pass: dropped rows are multiplied by zero,
and nothing here knows of compact execution, padding or the traced step.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from edge_fl.pattern import Pattern
from edge_fl.runtimes.base import Batch
from edge_fl.selection import Selection
from exporter.source import Source

__all__ = ["Arrays", "reference_evaluation", "reference_step"]

Arrays = dict[str, NDArray[np.float32]]


def reference_step(
    source: Source, weights: Arrays, pattern: Pattern, batch: Batch, *, lr: float, scale: float
) -> tuple[Arrays, float]:
    """One step of gradient descent on the full ``weights``: the new ones, and the loss before.

    Scaling the rows of a block scales its layers' outputs, as they are linear. Samples of weight 0 are left out.
    """
    parameters = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    factors = _row_factors(pattern, scale)
    effective = {name: tensor * factors[name] for name, tensor in parameters.items()}
    real = batch.weight > 0
    outputs = functional_call(source.module, effective, (torch.from_numpy(batch.x[real]),))
    loss: Tensor = source.loss.per_sample(outputs, torch.from_numpy(batch.y[real])).mean()
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    new = {}
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        moved = parameter.detach() if gradient is None else parameter.detach() - lr * gradient
        new[name] = moved.numpy()
    return new, loss.item()


def reference_evaluation(source: Source, weights: Arrays, batch: Batch) -> tuple[float, NDArray[np.float32]]:
    """The mean loss over the samples of weight above 0, and the outputs ``[B, classes]`` of all."""
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    training = source.module.training
    try:
        with torch.no_grad():
            outputs = functional_call(source.module.eval(), tensors, (torch.from_numpy(batch.x),))
            losses = source.loss.per_sample(outputs, torch.from_numpy(batch.y))
    finally:
        source.module.train(training)
    return float(losses[torch.from_numpy(batch.weight > 0)].mean()), outputs.numpy()


def _row_factors(pattern: Pattern, scale: float) -> dict[str, Tensor]:
    """What each tensor is multiplied by: 0 where dropped, ``scale`` where kept, 1 in tensors without own rows."""
    rows = Selection.of(pattern, "rows")
    factors = {}
    for tensor in pattern.layout.tensors:
        owned = any(segment.block is not None for axis in tensor.rows for segment in axis)
        factor = np.zeros(tensor.shape, dtype=np.float32)
        factor[rows.index(tensor)] = scale if owned else 1.0
        factors[tensor.name] = torch.from_numpy(factor)
    return factors
