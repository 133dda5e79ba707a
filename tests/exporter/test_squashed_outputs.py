"""A model that ends in what its loss applies is told of, and no other."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import edge_fl
from exporter.losses import find_loss
from exporter.squashed_outputs import warn_of_squashed_outputs


class Ends(nn.Module):
    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.end = nn.Linear(4, 3), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.layer(x))


ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda y: y.softmax(-1),
    "softmax, reshaped": lambda y: y.reshape(-1, 3, 1).softmax(1).squeeze(2),
    "sigmoid": torch.sigmoid,
    "log-softmax": lambda y: y.log_softmax(-1),
    "sigmoid of a gate": lambda y: y * torch.sigmoid(y),
    "nothing": lambda y: y,
}


@pytest.mark.parametrize(
    ("end", "loss", "told"),
    [
        ("softmax", "cross_entropy", "ends in a softmax, and the loss 'cross_entropy' takes logits"),
        ("softmax, reshaped", "masked_cross_entropy", "ends in a softmax"),
        ("sigmoid", "binary_cross_entropy", "ends in a sigmoid"),
        ("sigmoid", "cross_entropy", "ends in a sigmoid"),
        ("sigmoid", "mse", ""),
        ("softmax", "mse", ""),
        ("log-softmax", "cross_entropy", ""),  # a second one changes nothing
        ("sigmoid of a gate", "binary_cross_entropy", ""),
        ("nothing", "cross_entropy", ""),
    ],
)
def test_a_second_squashing_is_told_of(end: str, loss: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Ends(ENDS[end])
    warn_of_squashed_outputs(model, torch.zeros(2, 4), find_loss(loss))
    assert bool(caplog.text) == bool(told)
    assert told in caplog.text
    assert model.training


def test_an_export_tells_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1))
    with caplog.at_level(logging.WARNING):
        edge_fl.export(model, torch.zeros(2, 4), output=tmp_path)
    assert caplog.text.count("leave the softmax out") == 1
