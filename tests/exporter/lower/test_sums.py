"""Sums and means are dense layers with constant weights, where a program may store a column of ones."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

pytest.importorskip("executorch")

from exporter.lower._sums import sum_by_dense_layers
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.trace import trace_function
from tests.exporter.programs import in_executorch, with_gradients

ATEN = torch.ops.aten
Sum = Callable[[Tensor], Tensor]


def calls(function: Sum, x: Tensor) -> Iterator[str]:
    program = trace_function(lambda given: (function(given),), (x,), executorch_decompositions())
    sum_by_dense_layers(program.graph_module)
    return (node.target.__name__ for node in program.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.sum(-1), (3, 40, 8)),
        (lambda x: x.sum((-2, -1)), (20, 7, 9)),
        (lambda x: torch.bmm(x, torch.full((3, 8, 1), 0.3)), (3, 40, 8)),
        (lambda x: functional.layer_norm(x, (48,)), (5, 6, 48)),
    ],
)
def test_a_product_with_equal_numbers_is_a_dense_layer(function: Sum, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    names = list(calls(function, x))
    assert "linear.default" in names
    assert "bmm.default" not in names
    step = with_gradients(function)
    for ours, wanted in zip(in_executorch(step, (x,))(x), step(x), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.sum(-1), (40, 20_000)),  # a program would store 80 kB of ones
        (lambda x: x @ x.mean((0, 1)).reshape(8, 1), (3, 40, 8)),
        (lambda x: x @ torch.full((8, 2), 0.5), (3, 40, 8)),
    ],
)
def test_other_products_stay(function: Sum, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    assert "bmm.default" in calls(function, x)
    (ours,) = in_executorch(lambda given: (function(given),), (x,))(x)
    torch.testing.assert_close(ours, function(x), rtol=1e-5, atol=1e-3)
