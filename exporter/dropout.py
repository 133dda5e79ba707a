"""Models without their own dropout."""

import copy

import numpy as np
from torch import nn

__all__ = ["without_dropout"]

_NAMED = "drop"
_STOCHASTIC_DEPTH = "StochasticDepth"  # torchvision's


def without_dropout(model: nn.Module) -> nn.Module:
    """A copy of ``model`` whose dropout drops nothing.

    That is ``p`` of torch's and torchvision's layers, and every number of a module whose name speaks of dropping, such
    as ``attention_dropout`` or ``drop_prob``.
    """
    still = copy.deepcopy(model)
    for module in still.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__ == _STOCHASTIC_DEPTH:
            module.p = 0.0  # type: ignore[assignment]  # torchvision's has one, too
        for name, value in vars(module).items():
            if _NAMED in name and isinstance(value, float | np.floating):
                setattr(module, name, 0.0)
    return still
