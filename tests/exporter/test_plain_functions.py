"""Functions that a trace cannot hold, against what torch makes of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edge_fl.core.errors import UnsupportedModelError
from exporter.plain_functions import PlainFunctions


def test_an_empty_tensor_is_left_out_of_a_concatenation() -> None:
    nothing, keys = torch.tensor([]), torch.randn(2, 4, 3, 5)
    with PlainFunctions():
        assert torch.cat([nothing, keys], dim=-2) is keys
        assert torch.equal(torch.cat([keys, nothing, keys], -2), torch.cat([keys, keys], -2))
        assert torch.cat([nothing, nothing]).shape == (0,)


def test_adaptive_pooling_to_one_place_is_a_mean_of_any_memory_format() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with PlainFunctions():
        to_one, to_more = functional.adaptive_avg_pool2d(x, 1), functional.adaptive_avg_pool2d(x, (2, 5))
        of_signals = functional.adaptive_avg_pool1d(x[0], 1)
    torch.testing.assert_close(to_one, x.mean((2, 3), keepdim=True))
    assert torch.equal(to_more, functional.adaptive_avg_pool2d(x, (2, 5)))
    torch.testing.assert_close(of_signals, x[0].mean(2, keepdim=True))


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: functional.adaptive_max_pool2d(x, 1),
        lambda x: functional.adaptive_max_pool2d(x, (2, None)),
        lambda x: functional.adaptive_max_pool2d(x, (3, 2)),  # windows of two sizes
        lambda x: functional.adaptive_max_pool2d(x, 2, return_indices=True)[1],
        lambda x: functional.adaptive_max_pool1d(x[0], 3),
        lambda x: functional.adaptive_max_pool1d(x[0, 0], 1),
    ],
)
def test_adaptive_max_pooling_sends_the_gradient_to_the_entry_that_torch_takes_of_several(
    pool: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randint(-2, 3, (2, 4, 8, 6)).double().requires_grad_()
    expected = pool(x)
    with PlainFunctions():
        found = pool(x)
    assert torch.equal(found, expected)
    if expected.requires_grad:
        given = torch.randn_like(expected)
        gradients = (torch.autograd.grad(outputs, x, given)[0] for outputs in (found, expected))
        assert torch.equal(*gradients)


@pytest.mark.parametrize(("limit", "stays"), [(0.0, True), (-1, True), (1.0, False)])
def test_a_layer_that_is_left_out_with_probability_0_stays(limit: float, stays: bool) -> None:
    with PlainFunctions():
        left_out = torch.rand([]) < limit
    assert (left_out is False) == stays
    assert bool(left_out) != stays


def test_one_hot_of_a_given_number_of_classes_looks_at_no_value() -> None:
    y = torch.randint(0, 4, (3, 2))
    with PlainFunctions():
        assert torch.equal(functional.one_hot(y, 4), torch.eye(4, dtype=torch.int64)[y])
        assert torch.equal(functional.one_hot(input=y, num_classes=5), torch.eye(5, dtype=torch.int64)[y])
        with pytest.raises(UnsupportedModelError, match="give num_classes"):
            functional.one_hot(y)
