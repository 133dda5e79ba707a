"""Writes in place are replaced where nobody reads what was there, and left alone where somebody does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from exporter.passes.mutations import remove_mutations, writes_in_place

aten = torch.ops.aten


def relu(x: Tensor) -> Tensor:
    return (x * 2).relu_() + 1


def of_a_view(x: Tensor) -> Tensor:
    return (x * 2).permute(1, 0).relu_().add_(x.T)


def copied(x: Tensor) -> Tensor:
    y = x * 2
    y.copy_(x + 3)  # what this gives is read below, and y no more
    return aten.copy_.default(x * 2, x + 3) * 5


def read_by_either_name(x: Tensor) -> Tensor:
    y = x * 2
    return aten.relu_.default(y) + y  # the trace has one name for both


def read_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    return aten.relu_.default(y).sum() + row


def an_input(x: Tensor) -> Tensor:
    return x.relu_()


def broadcast(x: Tensor) -> Tensor:
    return aten.copy_.default(x * 2, x[0]) + 1


def traced(function: Callable[[Tensor], Tensor]) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(torch.randn(3, 4))


@pytest.mark.parametrize("function", [relu, of_a_view, copied, read_by_either_name])
def test_a_write_that_nobody_looks_behind_gives_a_new_tensor(function: Callable[[Tensor], Tensor]) -> None:
    module, x = traced(function), torch.randn(3, 4)
    expected = function(x.clone())

    assert writes_in_place(module.graph)
    assert remove_mutations(module.graph, ())
    assert not writes_in_place(module.graph)
    module.graph.lint()
    module.recompile()
    assert torch.equal(module(x), expected)


@pytest.mark.parametrize("function", [read_through_a_view, an_input, broadcast])
def test_a_write_that_somebody_reads_under_another_name_stays(function: Callable[[Tensor], Tensor]) -> None:
    module = traced(function)
    before = str(module.graph)

    assert not remove_mutations(module.graph, ())
    assert str(module.graph) == before


def test_what_has_to_be_traced_in_parts_stands_in_for_nothing() -> None:
    module = traced(relu)

    assert not remove_mutations(module.graph, {aten.relu.default})
    assert remove_mutations(module.graph, {aten.mul.Tensor})
