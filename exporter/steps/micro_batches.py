"""Gradients of a batch as sums over its micro-batches: only one's activations live at a time.

Each term of the loss is divided by the weights of the whole batch, so that the sums are what one pass gives.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from exporter.forward import WHOLE_WEIGHT
from exporter.recurrent.loop import Tensors, time_loop
from exporter.written_out import written_out

__all__ = ["accumulate", "in_one_pass", "whole_batches"]

_whole: ContextVar[bool] = ContextVar("whole", default=False)


@contextlib.contextmanager
def whole_batches() -> Iterator[None]:
    """Trace steps in one pass, whatever their micro-batches: for runtimes without loops that take any batch."""
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def in_one_pass(size: int) -> bool:
    """Whether a step of micro-batches of ``size`` (0: none) takes its batch at once."""
    return not size or _whole.get()


def accumulate(
    objective: Callable[[Tensors, Mapping[str, Tensor]], tuple[Tensor, tuple[Tensor, object]]],
    values: Tensors,
    inputs: Mapping[str, Tensor],
    batched: Sequence[str],
    size: int,
) -> tuple[Tensors, Tensor]:
    """The gradients of a batch with respect to ``values``, and the loss to report.

    Parameters
    ----------
    objective
        Of ``values`` and the inputs of a micro-batch: what is minimised, and beside it the loss and what else there is.
    inputs
        By name; ``batched`` are ``[B, ...]``, with B a multiple of ``size``.
    """
    cut = [inputs[name].reshape(-1, size, *inputs[name].shape[1:]) for name in batched]
    rest = {name: tensor for name, tensor in inputs.items() if name not in batched}
    rest[WHOLE_WEIGHT] = inputs["sample_weight"].sum()

    def one(*given: Tensor) -> Tensors:
        *sums, total = given[: len(values) + 1]
        parts = given[len(sums) + 1 : len(sums) + 1 + len(batched)]
        at, others = given[-len(values) - len(rest) : -len(rest)], given[-len(rest) :]
        named = {**dict(zip(batched, parts, strict=True)), **dict(zip(rest, others, strict=True))}
        with written_out():  # torch leaves it before it traces a loop
            gradients, (_, (loss, _)) = grad_and_value(objective, has_aux=True)(tuple(at), named)
        return (*(before + more for before, more in zip(sums, gradients, strict=True)), total + loss)

    start = (*(torch.zeros_like(value) for value in values), torch.zeros_like(rest[WHOLE_WEIGHT]))
    (*gradients, loss), _ = time_loop(one, start, tuple(cut), (*values, *rest.values()))
    return tuple(gradients), loss
