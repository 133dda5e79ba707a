"""FjORD's Table 2 (arXiv:2102.13451), computed from the models of the zoo at each width p.

A layer of K units keeps the first ceil(p K); the output layer, and the RNN's embedding, keep theirs.
"""

import pytest
import torch
from torch import nn

from exporter.costs import count_macs, count_parameters
from exporter.zoo.cnn import femnist_cnn
from exporter.zoo.lstm import character_rnn
from exporter.zoo.resnet import resnet18

# p in tenths: (MACs as printed, MACs as counted)
RESNET18 = {
    2: ("23M", 23_106_102),
    4: ("91M", 91_085_522),
    6: ("203M", 202_961_160),
    8: ("360M", 360_362_820),
    10: ("555M", 555_422_720),
}
CNN = {2: ("47K", 46_976), 4: ("120K", 119_552), 6: ("218K", 217_728), 8: ("342K", 341_504), 10: ("491K", 490_880)}
RNN = {2: ("12K", 12_116), 4: ("40K", 40_456), 6: ("83K", 83_006), 8: ("143K", 143_170), 10: ("216K", 216_320)}

# p in tenths: (parameters as printed, parameters as counted)
RESNET18_PARAMETERS = {
    2: ("456K", 455_638),
    4: ("2M", 1_799_454),
    6: ("4M", 4_043_572),
    8: ("7M", 7_167_886),
    10: ("11M", 11_164_362),
}
RNN_PARAMETERS = {
    2: ("12K", 12_302),
    4: ("40K", 40_018),
    6: ("82K", 81_968),
    8: ("142K", 141_508),
    10: ("214K", 214_058),
}
# The paper's are up to 1.1K above those of the CNN that has its MACs.
CNN_PARAMETERS = {2: ("5K", 4_286), 4: ("10K", 8_910), 6: ("15K", 13_934), 8: ("20K", 19_358), 10: ("26K", 25_182)}


def _kept(tenths: int, *units: int) -> tuple[int, ...]:
    return tuple(-(-tenths * count // 10) for count in units)


def _resnet18(tenths: int) -> nn.Module:
    return resnet18(channels=_kept(tenths, 64, 128, 256, 512))


def _cnn(tenths: int) -> nn.Module:
    first, second = _kept(tenths, 10, 20)
    return femnist_cnn(filters=(first, second))


def _rnn(tenths: int) -> nn.Module:
    return character_rnn(hidden=_kept(tenths, 128)[0])


def _printed(count: int, unit: str) -> str:
    return f"{count / {'K': 1e3, 'M': 1e6}[unit]:.0f}{unit}"


@pytest.mark.parametrize("tenths", RESNET18)
def test_resnet18(tenths: int) -> None:
    model = _resnet18(tenths)
    paper, ours = RESNET18[tenths]
    assert count_macs(model, input_shape=(3, 32, 32)) == ours
    assert _printed(ours, "M") == paper

    paper, ours = RESNET18_PARAMETERS[tenths]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    # The paper's 456K leaves out BatchNorm's parameters: with them, of which each width has its own, it is 458K.
    assert count_parameters(model) - sum(map(count_parameters, norms)) == ours
    assert _printed(ours, paper[-1]) == paper


@pytest.mark.parametrize("tenths", CNN)
def test_cnn(tenths: int) -> None:
    model = _cnn(tenths)
    paper, ours = CNN[tenths]
    assert count_macs(model, input_shape=(1, 28, 28)) == ours
    assert _printed(ours, "K") == paper

    paper, ours = CNN_PARAMETERS[tenths]
    assert count_parameters(model) == ours
    assert 0 < int(paper[:-1]) * 1000 - ours < 1_100


@pytest.mark.parametrize("tenths", RNN)
def test_rnn(tenths: int) -> None:
    model = _rnn(tenths)
    paper, ours = RNN[tenths]
    assert count_macs(model, input_shape=(1,), input_dtype=torch.int64) == ours  # of one character
    assert _printed(ours, "K") == paper

    paper, ours = RNN_PARAMETERS[tenths]
    second = sum(p.numel() for name, p in model.named_parameters() if "bias_hh" in name)
    assert count_parameters(model) - second == ours  # the paper's layers have one bias vector, torch's have two
    assert _printed(ours, "K") == paper


def test_no_other_count_of_biases_gives_the_table() -> None:
    with_linear_biases = RNN[4][1] + 90
    without_convolution_biases = CNN[10][1] - (24 * 24 * 10 + 8 * 8 * 20)
    assert (_printed(with_linear_biases, "K"), RNN[4][0]) == ("41K", "40K")
    assert (_printed(without_convolution_biases, "K"), CNN[10][0]) == ("484K", "491K")
