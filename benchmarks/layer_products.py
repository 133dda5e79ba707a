"""The matrix products of the dense layers and convolutions of a train step, and nothing else: a floor of its time."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from multiprocessing import get_context
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["LayerProduct", "layer_products", "products_of", "seconds_on_all_cores"]

_WARM = 20  # steps that are not counted


class LayerProduct(NamedTuple):
    """A layer's forward product is ``[rows, inner]`` by ``[inner, columns]``. The first layer's inputs have no
    gradient.
    """

    rows: int
    inner: int
    columns: int
    first: bool


def layer_products(model: nn.Module, x: Tensor) -> list[LayerProduct]:
    """Those of a batch ``x`` (``[B, ...]``), in their order. A convolution's inputs are unfolded into rows before."""
    found: list[LayerProduct] = []

    def note(layer: nn.Module, _inputs: object, y: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        columns, inner = weight.shape[0], weight[0].numel()
        found.append(LayerProduct(y.numel() // columns, inner, columns, not found))

    model = deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(note)
    with torch.no_grad():
        model(x)
    return found


def products_of(layers: Sequence[LayerProduct]) -> Callable[[], None]:
    """Makes every product of a step: of the forward pass, of the inputs' gradients, and of the weights', into memory
    of their own.
    """
    torch.manual_seed(0)
    calls: list[tuple[Tensor, Tensor, Tensor]] = []
    for rows, inner, columns, first in layers:
        x, weights, gradient = torch.rand(rows, inner), torch.rand(columns, inner), torch.rand(rows, columns)
        calls.append((x, weights.T, torch.empty(rows, columns)))
        calls.append((gradient.T, x, torch.empty(columns, inner)))
        if not first:
            calls.append((gradient, weights, torch.empty(rows, inner)))

    def step() -> None:
        for left, right, out in calls:
            torch.mm(left, right, out=out)

    return step


def seconds_on_all_cores(layers: Sequence[LayerProduct], *, steps: int, rounds: int, processes: int) -> float:
    """Wall seconds of ``steps`` steps, shared out over so many processes of one thread: the median of ``rounds``."""
    own = -(-steps // processes)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        futures = [pool.submit(_seconds, layers, own, rounds) for _ in range(processes)]
        return median(seconds for future in futures for seconds in future.result())


def _seconds(layers: Sequence[LayerProduct], steps: int, rounds: int) -> list[float]:
    torch.set_num_threads(1)
    step, found = products_of(layers), []
    for _ in range(_WARM):
        step()
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        found.append(time.perf_counter() - began)
    return found
