"""Sources of small models, as an export makes them."""

import torch
from torch import nn

from edge_fl.core.inputs import Input
from exporter.adapt import adapt
from exporter.derive import derive
from exporter.losses import find_loss
from exporter.recurrent.scaling import inner_weights
from exporter.source import Source


def source(model: nn.Module, shape: tuple[int, ...], classes: int) -> Source:
    """A classifier of float samples, with its layout."""
    found = derive(model, torch.zeros(3, *shape))
    data = (Input(shape, "float32"), Input((), "int64"), classes)
    inner = inner_weights(model, found.layout)
    return Source(
        adapt(model).train(), model, found.layout, found.scaled, find_loss("cross_entropy"), *data, inner=inner
    )
