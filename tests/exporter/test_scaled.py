"""Which parameters a factor of a narrow model multiplies."""

import pytest
import torch
from torch import Tensor, nn

from exporter.derive import derive
from exporter.recurrent.scaling import inner_weights
from exporter.scaled import scaled_parameters
from exporter.zoo import lstm, mlp


class Normalised(nn.Module):
    """A convolution under BatchNorm, one without, a depthwise one, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.plain, self.depthwise = nn.Conv2d(6, 5, 1), nn.Conv2d(5, 5, 1, groups=5)
        self.hidden, self.last = nn.Linear(5 * 36, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.plain(torch.relu(self.norm(self.first(x)))).relu()
        x = torch.relu(self.depthwise(x)).flatten(1)
        outputs: Tensor = self.last(torch.relu(self.hidden(x)))
        return outputs


class Tied(nn.Module):
    """The hidden layer's weight is the output layer's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.hidden.weight

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.relu(self.hidden(torch.relu(self.first(x)))))
        return outputs


RECURRENT = ("embedding.weight", "lstm.weight_hh_l0", "lstm.weight_ih_l1", "lstm.weight_hh_l1", "decoder.weight")
CONVOLUTIONAL = ("norm.weight", "norm.bias", "plain.weight", "plain.bias", "hidden.weight", "hidden.bias")


@pytest.mark.parametrize(
    ("model", "x", "expected"),
    [
        (mlp.digits(), torch.randn(3, 1, 8, 8), ("1.weight", "1.bias", "3.weight", "3.bias")),
        (Normalised(), torch.randn(3, 1, 8, 8), CONVOLUTIONAL),
        (lstm.character_rnn(hidden=6), torch.randint(0, 90, (2, 3)), RECURRENT),
    ],
    ids=["perceptron", "normalised", "recurrent"],
)
def test_weights_and_biases_of_the_layers_whose_outputs_are_units(
    model: nn.Module, x: Tensor, expected: tuple[str, ...]
) -> None:
    found = derive(model, x)
    assert scaled_parameters(model, found.layout, found.scaled, inner_weights(model, found.layout)) == expected


def test_no_factor_where_a_weight_is_another_layers_too() -> None:
    model = Tied()
    found = derive(model, torch.randn(3, 4))
    assert scaled_parameters(model, found.layout, ("hidden",)) == ()  # as a declared layout might say


def test_no_factor_where_a_scaled_layer_is_frozen() -> None:
    model = mlp.digits()
    model.get_submodule("3").requires_grad_(requires_grad=False)
    found = derive(model, torch.randn(3, 1, 8, 8))
    assert scaled_parameters(model, found.layout, ("1", "3")) == ()
