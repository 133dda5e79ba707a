"""The matrix products of a perceptron's train steps and nothing else, on all cores: a floor of a round's time."""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from statistics import median

import torch
from torch import Tensor, nn

__all__ = ["layers_of", "products", "seconds_on_all_cores"]

_WARM = 20  # steps that are not counted
_start: Barrier

Layer = tuple[int, int]
"""Its inputs and outputs."""


def layers_of(model: nn.Module) -> list[Layer]:
    """The dense layers of a model, in their order, of whatever width their weights are."""
    shapes = (each.weight.shape for each in model.modules() if isinstance(each, nn.Linear))
    return [(inputs, outputs) for outputs, inputs in shapes]


def products(layers: Sequence[Layer], batch: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The operands of every product of a step, and where it goes: the forward pass, the weights' gradients, and those
    of the inputs of all layers but the first.
    """
    torch.manual_seed(0)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for place, (inputs, outputs) in enumerate(layers):
        x, weights, gradient = torch.rand(batch, inputs), torch.rand(outputs, inputs), torch.rand(batch, outputs)
        found.append((x, weights.T, torch.empty(batch, outputs)))
        found.append((gradient.T, x, torch.empty(outputs, inputs)))
        if place:
            found.append((gradient, weights, torch.empty(batch, inputs)))
    return found


def seconds_on_all_cores(layers: Sequence[Layer], *, batch: int, steps: int, rounds: int, processes: int) -> float:
    """Wall seconds of ``steps`` steps, shared out over so many processes of one thread: the median of ``rounds``."""
    own, context = -(-steps // processes), get_context("spawn")
    start = context.Barrier(processes)
    with ProcessPoolExecutor(processes, context, _begin_at, (start,)) as pool:
        futures = [pool.submit(_seconds, layers, batch, own, rounds) for _ in range(processes)]
        return median(seconds for future in futures for seconds in future.result())


def _begin_at(start: Barrier) -> None:
    global _start  # noqa: PLW0603  (a barrier goes to a process when that begins, and in no other way)
    _start = start


def _seconds(layers: Sequence[Layer], batch: int, steps: int, rounds: int) -> list[float]:
    """Of each round, which all processes begin together."""
    torch.set_num_threads(1)
    made, found = products(layers, batch), []
    _make(made, _WARM)
    for _ in range(rounds):
        _start.wait()
        began = time.perf_counter()
        _make(made, steps)
        found.append(time.perf_counter() - began)
    return found


def _make(made: Sequence[tuple[Tensor, Tensor, Tensor]], steps: int) -> None:
    for _ in range(steps):
        for left, right, out in made:
            torch.mm(left, right, out=out)
