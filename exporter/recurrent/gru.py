"""One GRU layer (Cho et al., 2014, in torch's form) with its backward pass written out, as :mod:`.lstm` is.

r, z = sigmoid of x W_ih^T + b_ih + h W_hh^T + b_hh
n = tanh(x W_in^T + b_in + r (h W_hn^T + b_hn));  h' = n + z (h - n)
"""

from typing import Any

import torch
from torch import Tensor

from exporter.recurrent.gates import before, flat, gate_blocks, gate_weights
from exporter.recurrent.loop import Tensors, run_layer, time_loop

__all__ = ["gru"]


def gru(projected: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Run a layer over a sequence.

    Parameters
    ----------
    projected
        x W_ih^T + b_ih, ``[T, B, 3 H]``, gates in torch's order r, z, n.
    weight, bias
        W_hh, ``[3 H, H]``, and b_hh, ``[3 H]``.
    h
        The initial state, ``[B, H]``.

    Returns
    -------
    The outputs ``[T, B, H]`` and the last state ``[B, H]``.
    """
    outputs, h, *_ = run_layer(_Gru, projected, weight, bias, h)
    return outputs, h


def _forward(h: Tensor, *rest: Tensor) -> Tensors:
    (xr, xz, xn), (wr, wz, wn, bn) = rest[:3], rest[3:]
    r, z = torch.addmm(xr, h, wr).sigmoid(), torch.addmm(xz, h, wz).sigmoid()
    hn = torch.addmm(bn, h, wn)
    n = (xn + r * hn).tanh()
    h = n + z * (h - n)
    return h, h.clone(), r, z, n, hn


def _backward(dh: Tensor, dy: Tensor, *rest: Tensor) -> Tensors:
    to_r, to_z, to_hn, z, weight = rest
    dh = dh + dy
    gates = torch.cat([dh * to_r, dh * to_z, dh * to_hn], 1)
    return torch.addmm(dh * z, gates, weight), gates, dh


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(projected: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> Tensors:
        xr, xz, xn = gate_blocks(projected, 3, h.shape[1])
        br, bz, bn = gate_blocks(bias, 3, h.shape[1])
        constants = (*gate_weights(weight, 3), bn)
        carry, outputs = time_loop(_forward, (h,), (xr + br, xz + bz, xn), constants)
        return (outputs[0], *carry, *outputs[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Tensors, output: Tensors) -> None:
        _, weight, _, h = inputs
        outputs, _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.save_for_backward(weight, h, outputs, *saved)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh: Tensor, *_: Tensor) -> Tensors:
        weight, h, outputs, r, z, n, hn = ctx.saved_tensors
        previous = before(h, outputs)
        to_n = (1 - z) * (1 - n * n)
        factors = (to_n * hn * r * (1 - r), (previous - n) * z * (1 - z), to_n * r, z)
        (dh,), (gates, states) = time_loop(_backward, (dh,), (dy, *factors), (weight,), backwards=True)
        dr, dz = gate_blocks(gates, 3, h.shape[1])[:2]
        inputs = torch.cat([dr, dz, states * to_n], 2)
        return inputs, flat(gates).t() @ flat(previous), flat(gates).sum(0), dh
