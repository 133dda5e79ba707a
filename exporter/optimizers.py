"""What a step makes of its gradients: torch.optim's SGD and Adam as functions of tensors."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from edge_fl.core.bundle import Optimizer

__all__ = ["apply"]

_ENLARGED = 1e4
Slots = Mapping[str, Sequence[Tensor]]
"""The optimiser's state: for each slot one tensor a parameter."""


def apply(
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    slots: Slots,
    *,
    lr: Tensor,
    number: Tensor,
) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """New parameters and new slots.

    Parameters
    ----------
    lr
        The step size, 0-d.
    number
        Which step since the state was zero, from 1, 0-d (Adam's t).
    """
    if optimizer.clip is not None:
        gradients = _clipped(gradients, optimizer.clip)
    if optimizer.weight_decay:
        gradients = [g + optimizer.weight_decay * w for g, w in zip(gradients, parameters, strict=True)]
    if optimizer.name == "adam":
        return _adam(optimizer, parameters, gradients, slots, lr=lr, number=number)
    moves, new = list(gradients), {}
    if optimizer.momentum:
        moves = [optimizer.momentum * m + g for m, g in zip(slots["momentum"], gradients, strict=True)]
        new = {"momentum": moves}
    return [w - lr * move for w, move in zip(parameters, moves, strict=True)], new


def _clipped(gradients: Sequence[Tensor], largest: float) -> list[Tensor]:
    """As torch.nn.utils.clip_grad_norm_ does."""
    norm = torch.stack([(g * g).sum() for g in gradients]).sum().sqrt()
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    return [g * factor for g in gradients]


def _adam(
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    slots: Slots,
    *,
    lr: Tensor,
    number: Tensor,
) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """Kingma and Ba, Algorithm 1, with the bias corrections taken together as torch does."""
    beta1, beta2 = optimizer.betas
    first = [beta1 * m + (1 - beta1) * g for m, g in zip(slots["exp_avg"], gradients, strict=True)]
    second = [beta2 * v + (1 - beta2) * (g * g) for v, g in zip(slots["exp_avg_sq"], gradients, strict=True)]
    # Enlarged on both sides of the fraction: onnxscript takes eps for 0 and drops it as it is.
    size = lr * _ENLARGED / (1 - torch.pow(beta1, number))
    root = _ENLARGED / torch.sqrt(1 - torch.pow(beta2, number))
    new = [
        w - size * (m / (torch.sqrt(v) * root + _ENLARGED * optimizer.eps))
        for w, m, v in zip(parameters, first, second, strict=True)
    ]
    return new, {"exp_avg": first, "exp_avg_sq": second}
