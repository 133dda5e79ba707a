"""One plain recurrent layer (Elman, 1990), tanh or ReLU, with its backward pass written out, as :mod:`.lstm` is.

h' = tanh or relu of x W_ih^T + h W_hh^T + b
"""

from typing import Any

import torch
from torch import Tensor

from exporter.recurrent.gates import before, flat
from exporter.recurrent.loop import Tensors, run_layer, time_loop

__all__ = ["elman"]


def elman(projected: Tensor, weight: Tensor, h: Tensor, nonlinearity: str) -> tuple[Tensor, Tensor]:
    """Run a layer over a sequence.

    Parameters
    ----------
    projected
        x W_ih^T + b, ``[T, B, H]``.
    weight
        W_hh, ``[H, H]``.
    h
        The initial state, ``[B, H]``.
    nonlinearity
        "tanh" or "relu".

    Returns
    -------
    The outputs ``[T, B, H]`` and the last state ``[B, H]``.
    """
    outputs, h = run_layer(_Elman, projected, weight, h, nonlinearity)
    return outputs, h


def _tanh(h: Tensor, x: Tensor, weight: Tensor) -> Tensors:
    h = torch.addmm(x, h, weight).tanh()
    return h, h.clone()


def _relu(h: Tensor, x: Tensor, weight: Tensor) -> Tensors:
    h = torch.addmm(x, h, weight).relu()
    return h, h.clone()


def _backward(dh: Tensor, dy: Tensor, slope: Tensor, weight: Tensor) -> Tensors:
    gates = (dh + dy) * slope
    return gates @ weight, gates


class _Elman(torch.autograd.Function):
    @staticmethod
    def forward(projected: Tensor, weight: Tensor, h: Tensor, nonlinearity: str) -> Tensors:
        step = _tanh if nonlinearity == "tanh" else _relu
        (h,), (outputs,) = time_loop(step, (h,), (projected,), (weight.t().contiguous(),))
        return outputs, h

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, str], output: Tensors) -> None:
        _, weight, h, ctx.nonlinearity = inputs
        ctx.save_for_backward(weight, h, output[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        weight, h, outputs = ctx.saved_tensors
        # A rectified output is 0 or positive, so its sign is the slope.
        slope = 1 - outputs * outputs if ctx.nonlinearity == "tanh" else outputs.sign()
        (dh,), (gates,) = time_loop(_backward, (dh,), (dy, slope), (weight,), backwards=True)
        return gates, flat(gates).t() @ flat(before(h, outputs)), dh, None
