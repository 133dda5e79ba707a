"""Every model of the zoo: what it says of itself, the sizes its paper states, and its narrowed version."""

import math

import pytest
import torch
from torch import Tensor, nn

from edge_fl.core.errors import ModelError
from edge_fl.data.registry import dataset_info, dataset_names
from exporter.costs import count_parameters
from exporter.zoo import build, find_model, model_names
from exporter.zoo.entry import Architecture
from exporter.zoo.lstm import word_lstm


def _batch(architecture: Architecture, size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    shape = (size, *architecture.input_shape)
    tokens = architecture.input_dtype == "int64"
    x = torch.randint(architecture.classes, shape) if tokens else torch.randn(shape)
    return x, torch.randint(architecture.classes, (size, *architecture.target_shape))


def test_a_model_is_found_by_name_and_an_unknown_one_is_refused_with_the_names() -> None:
    for name in (
        "digits-mlp",
        "femnist-cnn",
        "shakespeare-rnn",
        "wikitext-2-lstm",
        "resnet18",
        "cifarnet",
        "vgg-like",
    ):
        assert find_model(name).name == name
    with pytest.raises(
        ModelError, match="There is no model 'resnet50' in the zoo; there are cifarnet, digits-mlp"
    ):
        build("resnet50")


@pytest.mark.parametrize("name", model_names())
def test_a_model_gives_what_its_entry_says_for_the_data_set_it_names(name: str) -> None:
    entry = find_model(name)
    model = entry.build().eval()
    x, y = _batch(entry, 2)
    with torch.no_grad():
        outputs = model(x)
    assert outputs.shape == (*y.shape, entry.classes)
    if entry.dataset in dataset_names():
        info = dataset_info(entry.dataset)
        assert (info.input_shape, info.classes) == (entry.input_shape, entry.classes)


@pytest.mark.parametrize("name", model_names())
def test_a_narrowed_model_is_small_has_the_same_kinds_of_layers_and_trains(name: str) -> None:
    entry = find_model(name)
    torch.manual_seed(0)
    narrowed = entry.narrowed.build()
    assert count_parameters(narrowed) < 10_000
    assert {type(m) for m in narrowed.modules()} == {type(m) for m in entry.build().modules()}
    assert (entry.narrowed.input_dtype, entry.narrowed.per_position) == (entry.input_dtype, entry.per_position)

    x, y = _batch(entry.narrowed, 8)
    before = _loss(narrowed, x, y)
    before.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in narrowed.parameters())
    torch.optim.SGD(narrowed.parameters(), lr=0.01).step()
    assert _loss(narrowed, x, y) < before


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    outputs = model(x)
    return nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten())


# Parameters as the papers print them, or as their upload in MB says (4 bytes each).
STATED = {
    "fashion-mnist-mlp": ("1.1 MB", 269_322, lambda n: f"{4 * n / 1e6:.1f} MB"),  # FedBIAD, Table I
    "resnet18": ("11,173,962", 11_173_962, lambda n: f"{n:,}"),  # TCS, section III-A
    "cifarnet": ("1.3M", 1_294_922, lambda n: f"{n / 1e6:.1f}M"),  # variational dropout, Table 1
    "femnist-cnn": ("25.2K", 25_182, lambda n: f"{n / 1e3:.1f}K"),  # FjORD, Table 2, prints 26K
    "shakespeare-rnn": ("214K", 215_082, lambda n: f"{(n - 8 * 128) / 1e3:.0f}K"),  # one bias vector a layer
    "wikitext-2-lstm": ("85.8 MB", 21_444_878, lambda n: f"{4 * n / 1e6:.1f} MB"),  # our vocabulary
    "vgg-like": (
        "14.7M",
        14_724_042,
        lambda n: f"{n / 1e6:.1f}M",
    ),  # VGG-16's convolutions; the paper prints 18.8M
    "mnist-mlp": ("118,282", 118_282, lambda n: f"{n:,}"),  # no paper's: 531 KB fits no MLP of one width 128
}


@pytest.mark.parametrize("name", STATED)
def test_parameters_are_those_that_are_stated(name: str) -> None:
    stated, ours, printed = STATED[name]
    counted = count_parameters(build(name))
    assert counted == ours
    assert printed(counted) == stated


def test_fedbiads_uploads_of_its_language_model_are_those_of_its_table() -> None:
    """FedBIAD's Table I: 29.8 MB with PTB's 10,000 words, 75.3 MB with about 28,900."""
    for vocabulary, stated in ((10_000, 29.8), (28_900, 75.3)):
        megabytes = 4 * count_parameters(word_lstm(vocabulary=vocabulary)) / 1e6
        assert math.isclose(megabytes, stated, abs_tol=0.05)
