"""Multiply-accumulates against counts made by hand."""

import pytest
import torch
from torch import Tensor, nn

from exporter.costs import count_macs, count_parameters
from exporter.zoo.cnn import femnist_cnn
from exporter.zoo.lstm import character_rnn
from exporter.zoo.resnet import resnet18
from tests.exporter.unseen import GRUClassifier, MobileNet


@pytest.mark.parametrize(
    ("layer", "input_shape", "macs"),
    [
        (nn.Linear(3, 4), (3,), 3 * 4),
        (nn.Linear(3, 4, bias=False), (5, 3), 5 * 3 * 4),
        (nn.Conv2d(2, 4, 3, padding=1, bias=False), (2, 6, 5), 6 * 5 * 4 * (2 * 3 * 3)),
        (nn.Conv2d(2, 4, 3), (2, 6, 5), 4 * 3 * 4 * (2 * 3 * 3 + 1)),
        (nn.Conv2d(4, 8, 3, stride=2, groups=4), (4, 7, 7), 3 * 3 * 8 * (3 * 3 + 1)),
        (nn.Conv1d(2, 4, 3, bias=False), (2, 6), 4 * 4 * (2 * 3)),
        (nn.ConvTranspose2d(2, 4, 2, stride=2, bias=False), (2, 3, 3), 3 * 3 * 2 * (4 * 2 * 2)),
        (nn.LSTM(3, 4, batch_first=True), (5, 3), 5 * (16 * (3 + 4) + 16 * 3 + 4 * 4)),
        (nn.LSTM(3, 4, batch_first=True, bias=False), (5, 3), 5 * (16 * (3 + 4) + 16 + 4 * 4)),
        (nn.GRU(3, 4, batch_first=True), (5, 3), 5 * (12 * (3 + 4) + 12 * 3 + 4 * 4)),
        (nn.GRU(3, 4, batch_first=True, bidirectional=True), (5, 3), 2 * 5 * (12 * (3 + 4) + 12 * 3 + 4 * 4)),
        (nn.RNN(3, 4, num_layers=2, batch_first=True), (5, 3), 5 * (4 * (3 + 4) + 4 * (4 + 4) + 2 * 4 * 3)),
        (nn.LSTMCell(3, 4), (3,), 16 * (3 + 4) + 16 * 3 + 4 * 4),
        (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2)), (3, 8, 8), 0),
    ],
)
def test_a_layer_costs_what_its_formula_says(layer: nn.Module, input_shape: tuple[int, ...], macs: int) -> None:
    assert count_macs(layer, input_shape=input_shape) == macs


class _Attention(nn.Module):
    """One head over T tokens: its products are no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.pool = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.project(x)
        return nn.functional.scaled_dot_product_attention(h, h, h) @ self.pool


def test_products_count_whoever_calls_them() -> None:
    assert count_macs(_Attention(), input_shape=(5, 3)) == 5 * 3 * 3 + 2 * (5 * 5 * 3) + 5 * 3
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, batch_first=True)
    assert count_macs(layer, input_shape=(5, 4)) == 5 * 4 * 4 * 4 + 2 * (5 * 5 * 4) + 2 * (5 * 4 * 6)


def test_the_model_and_the_machine_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.BatchNorm2d(2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compact = {name: tensor[:1] for name, tensor in model.named_parameters()}
    enabled = torch.backends.mkldnn.enabled
    count_macs(model, input_shape=(2, 5, 5))
    count_macs(model, input_shape=(1, 5, 5), tensors=compact)
    assert model.training
    assert model[0].groups == 2
    assert torch.backends.mkldnn.enabled == enabled
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def grouped(*, groups: int) -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 2 * groups, 3), nn.GroupNorm(groups, 2 * groups))


@pytest.mark.parametrize(
    ("full", "narrow", "input_shape", "dtype"),
    [
        (femnist_cnn(), femnist_cnn(filters=(2, 4)), (1, 28, 28), torch.float32),
        (character_rnn(), character_rnn(hidden=26), (3,), torch.int64),
        (resnet18(channels=(6, 7, 8, 9)), resnet18(channels=(3, 4, 5, 4)), (3, 16, 16), torch.float32),
        (MobileNet(), MobileNet(channels=(3, 2), widened=5), (3, 12, 12), torch.float32),
        (GRUClassifier(), GRUClassifier(hidden=2), (7, 3), torch.float32),
        (grouped(groups=4), grouped(groups=3), (2, 5), torch.float32),
    ],
)
def test_compact_tensors_cost_what_a_model_of_their_width_costs(
    full: nn.Module, narrow: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    compact = dict(narrow.named_parameters())
    macs = count_macs(full, input_shape=input_shape, input_dtype=dtype, tensors=compact)
    assert macs == count_macs(narrow, input_shape=input_shape, input_dtype=dtype)
    assert macs < count_macs(full, input_shape=input_shape, input_dtype=dtype)


def test_a_tied_tensor_is_one_parameter_and_works_twice() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second, nn.BatchNorm1d(4))
    assert count_parameters(model) == 4 * 4 + 2 * 4
    assert count_macs(model, input_shape=(4,)) == 2 * 4 * 4
