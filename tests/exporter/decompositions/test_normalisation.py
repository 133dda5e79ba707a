"""Normalisation and activations with their gradients, through the runtimes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from exporter.decompositions import core_decompositions
from tests.exporter.programs import in_executorch, in_onnx, largest_difference, with_gradients


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out: Tensor = torch.ops.aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.0, 1e-5)[0]
    return out


NORMALISATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "batch": _batch_norm,
    "batch, fixed": lambda x, w, b: functional.batch_norm(x, 0.1 * b.detach(), w.detach() ** 2 + 0.5, w, b),
    "group": lambda x, w, b: functional.group_norm(x, 2, w, b),
    "layer": lambda x, w, b: functional.layer_norm(x.transpose(1, 3), (6,), w, b),
    "channels alone": lambda x, w, b: functional.group_norm(x, 6, w, b),
}

ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    functional.relu6,
    functional.silu,
    functional.gelu,
    functional.hardswish,
    functional.leaky_relu,
    functional.elu,
]


def operands(dtype: torch.dtype = torch.float32, batch: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(batch, 6, 5, 3, dtype=dtype) + 2, torch.randn(6, dtype=dtype), torch.randn(6, dtype=dtype)


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_written_out_a_normalisation_and_its_gradients_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    given = operands(torch.float64)
    function = with_gradients(NORMALISATIONS[name])

    graph = make_fx(function, decomposition_table=core_decompositions())(*given)

    assert largest_difference(graph(*given), function(*given)) < 1e-10


def _everything(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    results = [
        r for name in ("batch", "group", "layer") for r in with_gradients(NORMALISATIONS[name])(x, weight, bias)
    ]
    results += [r for f in ACTIVATIONS for r in with_gradients(f)(3 * x - 6)]
    return tuple(results)


@pytest.mark.parametrize("runtime", ["onnx", "executorch"])
def test_the_runtimes_normalise_and_activate_as_torch_does(runtime: str) -> None:
    torch.manual_seed(0)
    static = runtime == "executorch"
    run = in_executorch(_everything, operands()) if static else in_onnx(_everything, operands(), [(0,), (), ()])

    for _ in range(2):
        given = operands()
        assert largest_difference(run(*given), _everything(*given)) < 1e-4


def test_one_onnx_program_normalises_any_channels_and_batch() -> None:
    function = with_gradients(_batch_norm)
    run = in_onnx(function, (torch.randn(4, 6, 5, 3), torch.randn(6), torch.randn(6)), [(0, 1), (0,), (0,)])

    for batch, channels in [(4, 6), (7, 2), (20, 9)]:
        given = torch.randn(batch, channels, 5, 3), torch.randn(channels), torch.randn(channels)
        assert largest_difference(run(*given), function(*given)) < 1e-4
