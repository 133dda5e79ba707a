"""Linear layers over sequences: traced with every length free, and as one product."""

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from exporter.recurrent.linear import FlatLinear


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_linear_layer_over_a_sequence_fixes_no_length(transposed: bool, biased: bool) -> None:
    def step(x: Tensor, *parameters: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        def loss(parameters: tuple[Tensor, ...]) -> Tensor:
            weight, bias = parameters if biased else (*parameters, None)
            sequence = x.transpose(0, 1) if transposed else x
            return functional.linear(sequence, weight, bias).square().sum()

        gradients, value = grad_and_value(loss)(parameters)
        return gradients, value

    inputs = (torch.randn(3, 4, 5), torch.randn(7, 5), torch.randn(7))[: 3 if biased else 2]
    with FlatLinear():
        graph = make_fx(step, tracing_mode="symbolic")(*inputs)
    values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    assert not any(isinstance(length, int) for value in values for length in value.shape)
    assert not graph.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)
    others = (torch.randn(2, 6, 3), torch.randn(4, 3), torch.randn(4))[: len(inputs)]
    torch.testing.assert_close(graph(*others), step(*others))
