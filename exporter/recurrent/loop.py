"""The loop over time: one operation in a traced program, or written out step by step.

One operation keeps a program small and lets it take any number of units (an ONNX Scan); a runtime without loops
gets the steps one after the other, and so does torch itself, where they are faster.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan_op
from torch.fx.experimental.proxy_tensor import get_proxy_mode

__all__ = ["Step", "Tensors", "run_layer", "time_loop", "unrolled"]

Tensors = tuple[Tensor, ...]

Step = Callable[..., Tensors]
"""``(*carry, *inputs, *constants) -> (*carry, *outputs)`` of one time step; no result may be a view or an argument."""

_unrolled: ContextVar[bool] = ContextVar("unrolled", default=False)
_derived: ContextVar[bool] = ContextVar("derived", default=False)


@contextlib.contextmanager
def unrolled(*, derived: bool = False) -> Iterator[None]:
    """Write out the loops of everything traced inside; the number of time steps must be static.

    Parameters
    ----------
    derived
        Leave the backward pass to autograd, which derives it from the steps written out: for tracers that know no
        autograd.Function. Otherwise it is the layers' own.
    """
    tokens = _unrolled.set(True), _derived.set(derived)
    try:
        yield
    finally:
        _unrolled.reset(tokens[0])
        _derived.reset(tokens[1])


def run_layer(layer: type[torch.autograd.Function], *arguments: Any) -> Tensors:
    """The results of a layer, differentiated by its own backward pass or by autograd, as :func:`unrolled` says."""
    run = layer.forward if _derived.get() else layer.apply
    return run(*arguments)  # type: ignore[no-any-return]


def time_loop(
    step: Step, carry: Tensors, sequences: Tensors, constants: Tensors, *, backwards: bool = False
) -> tuple[Tensors, Tensors]:
    """Run ``step`` over the first axis of every sequence.

    Parameters
    ----------
    carry
        What the first step starts from.
    sequences
        ``[T, ...]`` each; a step is given its slices.
    constants
        Given to every step.
    backwards
        Begin with the last step.

    Returns
    -------
    The last carry, and the outputs of every step stacked in the order of time, ``[T, ...]`` each.
    """
    if _unrolled.get() or get_proxy_mode() is None:
        return _steps(step, carry, sequences, constants, backwards)
    if backwards:
        sequences = tuple(sequence.flip(0) for sequence in sequences)
    results = _Loop.apply(  # type: ignore[no-untyped-call]
        step, len(carry), len(sequences), *carry, *sequences, *constants
    )
    outputs = results[len(carry) :]
    return results[: len(carry)], tuple(o.flip(0) for o in outputs) if backwards else outputs


def _steps(
    step: Step, carry: Tensors, sequences: Tensors, constants: Tensors, backwards: bool
) -> tuple[Tensors, Tensors]:
    sliced = [sequence.unbind() for sequence in sequences]  # derived, its backward pass is one stack
    steps = len(sliced[0])
    outputs = []
    for t in reversed(range(steps)) if backwards else range(steps):
        results = step(*carry, *(slices[t] for slices in sliced), *constants)
        carry = results[: len(carry)]
        outputs.append(results[len(carry) :])
    if backwards:
        outputs.reverse()
    return carry, tuple(torch.stack(output) for output in zip(*outputs, strict=True))


class _Loop(torch.autograd.Function):
    """The operation itself, which torch.func can step over in the backward pass only as a function of this kind."""

    @staticmethod
    def forward(step: Step, carried: int, sequences: int, *tensors: Tensor) -> Tensors:
        inputs = carried + sequences
        return tuple(scan_op(step, tensors[:carried], tensors[carried:inputs], tensors[inputs:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.mark_non_differentiable(*output)
