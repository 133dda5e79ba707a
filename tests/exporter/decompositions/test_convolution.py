"""Convolutions by half unfolding against torch's own: every setting, all three gradients."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from exporter.decompositions import core_decompositions
from tests.exporter.programs import in_executorch, in_onnx, largest_difference, with_gradients


@dataclass(frozen=True)
class Case:
    channels: int
    outputs: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def function(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        convolution = functional.conv1d if len(self.size) == 1 else functional.conv2d
        return lambda x, weight, bias: convolution(
            x, weight, bias, self.stride, self.padding, self.dilation, self.groups
        )

    def operands(self, dtype: torch.dtype = torch.float32, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
        return (
            torch.randn(batch, self.channels, *self.size, dtype=dtype),
            torch.randn(self.outputs, self.channels // self.groups, *self.kernel, dtype=dtype),
            torch.randn(self.outputs, dtype=dtype),
        )


CASES = [
    Case(8, 5, (7, 6), (3, 3), padding=1),
    Case(8, 5, (8, 8), (5, 5), padding=2),
    Case(8, 5, (8, 9), (5, 5)),
    Case(1, 5, (8, 9), (5, 5)),
    Case(3, 5, (8, 7), (3, 3), stride=2, padding=1),
    Case(8, 5, (8, 7), (3, 3), stride=2, padding=1),
    Case(8, 5, (2, 2), (3, 3), stride=2, padding=1),
    Case(8, 5, (1, 1), (3, 3), padding=1),
    Case(8, 5, (8, 7), (1, 1)),
    Case(8, 5, (8, 7), (1, 1), stride=2),
    Case(8, 5, (9, 9), (3, 3), stride=2, padding=1, dilation=2),
    Case(8, 5, (3, 3), (3, 3), padding=4, dilation=4),
    Case(6, 4, (11, 10), (7, 7), stride=3, padding=2),
    Case(8, 4, (8, 8), (2, 2), stride=3),
    Case(8, 4, (8, 9), (1, 3), padding=1),
    Case(8, 6, (6, 6), (3, 3), padding=1, groups=2),
    Case(8, 8, (6, 6), (3, 3), stride=2, padding=1, groups=4),
    Case(8, 8, (6, 6), (3, 3), padding=1, groups=8),
    Case(8, 8, (7, 6), (3, 3), stride=2, padding=1, groups=8),
    Case(8, 8, (6, 5), (3, 3), padding=2, dilation=2, groups=8),
    Case(8, 16, (5, 5), (3, 3), padding=1, groups=8),
    Case(6, 4, (11,), (3,)),
    Case(6, 4, (11,), (3,), stride=2, padding=1),
    Case(6, 4, (11,), (5,), padding=2, dilation=2, groups=2),
]


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_written_out_a_convolution_and_its_gradients_are_torchs(case: Case, gather: bool) -> None:
    torch.manual_seed(0)
    operands = case.operands(torch.float64)
    function = with_gradients(case.function)

    graph = make_fx(function, decomposition_table=core_decompositions(gather=gather))(*operands)

    assert not [node for node in graph.graph.nodes if "convolution" in str(node.target)]
    assert largest_difference(graph(*operands), function(*operands)) < 1e-12


IN_RUNTIMES = [
    Case(1, 5, (8, 9), (5, 5)),
    Case(8, 5, (7, 7), (3, 3), stride=2, padding=1),
    Case(8, 8, (6, 6), (3, 3), padding=1, groups=4),
    Case(8, 8, (7, 6), (3, 3), stride=2, padding=1, groups=8),
    Case(8, 5, (8, 7), (1, 1), stride=2),
]


def _all_cases(*operands: Tensor) -> tuple[Tensor, ...]:
    results: list[Tensor] = []
    for i, case in enumerate(IN_RUNTIMES):
        results += with_gradients(case.function)(*operands[3 * i : 3 * i + 3])
    return tuple(results)


def _operands() -> list[Tensor]:
    return [tensor for case in IN_RUNTIMES for tensor in case.operands()]


@pytest.mark.parametrize("runtime", [pytest.param("onnx", marks=pytest.mark.matrix), "executorch"])
def test_the_runtimes_compute_every_case_call_after_call(runtime: str) -> None:
    torch.manual_seed(0)
    batch_is_free = [(0,), (), ()] * len(IN_RUNTIMES)
    static = runtime == "executorch"
    run = in_executorch(_all_cases, _operands()) if static else in_onnx(_all_cases, _operands(), batch_is_free)

    for _ in range(3):
        operands = _operands()
        assert largest_difference(run(*operands), _all_cases(*operands)) < 1e-5


@pytest.mark.matrix
def test_one_onnx_program_takes_any_channels_and_batch() -> None:
    def layers(x: Tensor, first: Tensor, single: Tensor, second: Tensor) -> Tensor:
        h = functional.conv2d(x, first, stride=2, padding=1).relu()
        h = functional.conv2d(h, single, padding=1, groups=h.shape[1]).relu()
        return functional.conv2d(h, second, stride=2)

    def operands(batch: int, middle: int, outputs: int) -> tuple[Tensor, ...]:
        return (
            torch.randn(batch, 3, 11, 10),
            torch.randn(middle, 3, 3, 3),
            torch.randn(middle, 1, 3, 3),
            torch.randn(outputs, middle, 3, 3),
        )

    torch.manual_seed(0)
    function = with_gradients(layers)
    run = in_onnx(function, operands(6, 5, 7), [(0,), (0,), (0,), (0, 1)])

    for batch, middle, outputs in [(6, 5, 7), (1, 9, 4), (20, 2, 16)]:
        given = operands(batch, middle, outputs)
        assert largest_difference(run(*given), function(*given)) < 1e-5


def test_the_first_layer_computes_no_gradient_of_its_input() -> None:
    def weight_gradient(x: Tensor, weight: Tensor) -> Tensor:
        leaf = weight.detach().requires_grad_()
        return torch.autograd.grad(functional.conv2d(x, leaf, padding=1).sum(), leaf)[0]

    graph = make_fx(weight_gradient, decomposition_table=core_decompositions())(
        torch.randn(2, 8, 5, 5), torch.randn(4, 8, 3, 3)
    )

    assert sum("bmm" in str(node.target) for node in graph.graph.nodes) == 2
