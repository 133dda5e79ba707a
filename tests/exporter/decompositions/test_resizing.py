"""Upsampling and its gradients against torch's: every mode, more and fewer places, aligned corners."""

from collections.abc import Mapping
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from exporter.decompositions import core_decompositions
from tests.exporter.programs import in_executorch, in_onnx, largest_difference, with_gradients

SIZES = (
    {"scale_factor": 2},
    {"scale_factor": 0.6},
    {"scale_factor": 1.1},
    {"scale_factor": 2.04},
    {"size": (7, 4)},
    {"size": (6, 13)},
)
MODES = {
    "nearest": {},
    "nearest-exact": {},
    "bilinear": {},
    "bicubic": {},
    "bilinear, aligned": {"mode": "bilinear", "align_corners": True},
    "bicubic, aligned": {"mode": "bicubic", "align_corners": True},
}


def resized(x: Tensor, mode: str, size: Mapping[str, object]) -> Tensor:
    return functional.interpolate(x, **{"mode": mode, **MODES[mode]}, **size)  # type: ignore[arg-type]


# Where no length changes, torch gives another function's gradient for bicubic upsampling.
CASES = [(mode, size) for mode in MODES for size in SIZES if (mode, size) != ("bicubic", {"scale_factor": 1.1})]


@pytest.mark.parametrize(("mode", "size"), CASES, ids=str)
def test_written_out_upsampling_and_its_gradient_are_torchs(mode: str, size: Mapping[str, object]) -> None:
    x = torch.randn(2, 3, 6, 9, dtype=torch.float64)
    function = with_gradients(lambda x: resized(x, mode, size))

    graph = make_fx(function, decomposition_table=core_decompositions())(x)

    assert not [node for node in graph.graph.nodes if "upsample" in str(node.target)]
    assert largest_difference(graph(x), function(x)) < 1e-12


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5, 3)], ids=["one axis", "three axes"])
@pytest.mark.parametrize("smooth", [True, False])
def test_signals_and_volumes(shape: tuple[int, ...], *, smooth: bool) -> None:
    mode = ("linear" if len(shape) == 3 else "trilinear") if smooth else "nearest"
    x = torch.randn(shape, dtype=torch.float64)
    function = with_gradients(lambda x: functional.interpolate(x, scale_factor=2, mode=mode))

    graph = make_fx(function, decomposition_table=core_decompositions())(x)

    assert not [node for node in graph.graph.nodes if "upsample" in str(node.target)]
    assert largest_difference(graph(x), function(x)) < 1e-12


def test_runtimes_upsample_as_torch_does() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        ways = [
            with_gradients(partial(resized, mode=mode, size=SIZES[0]))
            for mode in ("nearest", "bilinear", "bicubic")
        ]
        return tuple(result for way in ways for result in way(x))

    x = torch.randn(3, 4, 5, 6)
    for run in (in_executorch(function, [x]), in_onnx(function, [x], free=[[0]])):
        assert largest_difference(run(x), function(x)) < 1e-5
