"""Sums and means are dense layers with constant weights, where a program may store a column of ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn import functional

pytest.importorskip("executorch")

from exporter.lower._edge import to_edge
from exporter.lower._xnnpack import delegate
from exporter.lower.executorch import _lighten
from exporter.lower.executorch_decompositions import executorch_decompositions
from exporter.quiet import quiet
from exporter.trace import trace_function
from tests.exporter.programs import in_executorch, with_gradients

ATEN = torch.ops.aten
Sum = Callable[[Tensor], Tensor]


def traced(function: Sum, x: Tensor) -> ExportedProgram:
    program = trace_function(lambda given: (function(given),), (x,), executorch_decompositions())
    _lighten(program)
    return program


def calls(program: ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.sum(-1), (3, 40, 8)),
        (lambda x: x.sum((-2, -1)), (20, 7, 9)),
        (lambda x: torch.bmm(x, torch.full((3, 8, 1), 0.3)), (3, 40, 8)),
        (lambda x: torch.bmm(x, torch.full((3, 8, 1), 2.0)).relu() + x.sum(-1, keepdim=True), (3, 40, 8)),
        (lambda x: functional.layer_norm(x, (48,)), (5, 6, 48)),
        (lambda x: functional.layer_norm(functional.layer_norm(x, (48,)).cumsum(1), (48,)), (5, 6, 48)),
    ],
)
def test_a_product_with_equal_numbers_is_a_dense_layer(function: Sum, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    program = traced(function, x)
    names = calls(program)
    assert "aten.linear.default" in names
    assert "aten.bmm.default" not in names
    with quiet():
        left = calls(delegate(to_edge(program)))
    assert "executorch_call_delegate" in left
    assert not any("linear" in name for name in left)  # XNNPACK takes all of them

    step = with_gradients(function)
    for ours, wanted in zip(in_executorch(step, (x,))(x), step(x), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.sum(-1), (40, 20_000)),  # a program would store 80 kB of ones
        (lambda x: x @ x.mean((0, 1)).reshape(8, 1), (3, 40, 8)),
        (lambda x: x @ torch.full((8, 2), 0.5), (3, 40, 8)),
        (lambda x: torch.bmm(x, torch.full((3, 0, 1), 0.5)), (3, 40, 0)),
    ],
)
def test_other_products_stay(function: Sum, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    assert "aten.bmm.default" in calls(traced(function, x))
    (ours,) = in_executorch(lambda given: (function(given),), (x,))(x)
    torch.testing.assert_close(ours, function(x), rtol=1e-5, atol=1e-3)
