"""A layer of one's own, whose units no graph can tell, with the layout that says them.

`edge-fl export examples/gated_mlp.py:build --dataset digits --optimizer adam --clip-norm 1 -o bundle/`
"""

import torch
from torch import Tensor, nn

from edge_fl.core.layout import Axis, Block, Layout, Segment
from edge_fl.core.layout import Tensor as Spec


def free(length: int) -> Axis:
    return (Segment(None, inner=length),)


class GatedMlp(nn.Module):
    """A gated linear unit (Dauphin et al., 2017): unit j is rows j (value) and J + j (gate) of a matrix."""

    def __init__(self, inputs: int, units: int, classes: int) -> None:
        super().__init__()
        self.units = units
        self.both = nn.Parameter(torch.randn(2 * units, inputs) / inputs**0.5)
        self.out = nn.Linear(units, classes)

    def forward(self, x: Tensor) -> Tensor:
        both = x.flatten(1) @ self.both.T
        value, gate = both.unflatten(1, (2, -1)).unbind(1)
        logits: Tensor = self.out(value * torch.sigmoid(gate))
        return logits

    def edge_fl_layout(self) -> Layout:
        unit: Axis = (Segment("units"),)
        rows: Axis = (Segment("units", outer=2),)
        inputs, classes = self.both.shape[1], self.out.out_features
        return Layout(
            (Block("units", self.units),),
            (
                Spec("both", (2 * self.units, inputs), (rows, free(inputs)), (rows, free(inputs))),
                Spec(
                    "out.weight", (classes, self.units), (free(classes), free(self.units)), (free(classes), unit)
                ),
                Spec("out.bias", (classes,), (free(classes),), (free(classes),)),
            ),
        )


def build() -> nn.Module:
    return GatedMlp(inputs=64, units=24, classes=10)
