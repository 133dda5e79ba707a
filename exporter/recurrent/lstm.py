"""One LSTM layer (Hochreiter and Schmidhuber, 1997, with forget gates) with its backward pass written out.

    i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of x W_ih^T + h W_hh^T + b
    c' = f c + i g;  h' = o tanh(c')

Whatever does not hang on the step before is computed for all steps at once: the input's product, the weights'
gradients, and the factors by which the backward loop multiplies.
"""

from typing import Any

import torch
from torch import Tensor

from exporter.recurrent.gates import before, flat, gate_blocks, gate_weights
from exporter.recurrent.loop import Tensors, run_layer, time_loop

__all__ = ["lstm"]


def lstm(projected: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer over a sequence.

    Parameters
    ----------
    projected
        x W_ih^T + b, ``[T, B, 4 H]``, gates in torch's order i, f, g, o.
    weight
        W_hh, ``[4 H, H]``.
    h, c
        Initial states, ``[B, H]``.

    Returns
    -------
    The outputs ``[T, B, H]`` and the last h and c ``[B, H]``.
    """
    outputs, h, c, *_ = run_layer(_Lstm, projected, weight, h, c)
    return outputs, h, c


def _forward(h: Tensor, c: Tensor, *rest: Tensor) -> Tensors:
    (xi, xf, xg, xo), (wi, wf, wg, wo) = rest[:4], rest[4:]
    i, f = torch.addmm(xi, h, wi).sigmoid(), torch.addmm(xf, h, wf).sigmoid()
    g, o = torch.addmm(xg, h, wg).tanh(), torch.addmm(xo, h, wo).sigmoid()
    c = f * c + i * g
    tc = c.tanh()
    h = o * tc
    return h, c, h.clone(), c.clone(), tc, i, f, g, o


def _backward(dh: Tensor, dc: Tensor, dy: Tensor, *rest: Tensor) -> Tensors:
    to_c, to_i, to_f, to_g, to_o, f, weight = rest
    dh = dh + dy
    dc = dc + dh * to_c
    gates = torch.cat([dc * to_i, dc * to_f, dc * to_g, dh * to_o], 1)
    return gates @ weight, dc * f, gates


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(projected: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> Tensors:
        carry, outputs = time_loop(
            _forward, (h, c), gate_blocks(projected, 4, h.shape[1]), gate_weights(weight, 4)
        )
        return (outputs[0], *carry, *outputs[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Tensors, output: Tensors) -> None:
        _, weight, h, c = inputs
        outputs, _, _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.save_for_backward(weight, h, c, outputs, *saved)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh: Tensor, dc: Tensor, *_: Tensor) -> Tensors:
        weight, h, c, outputs, cells, tc, i, f, g, o = ctx.saved_tensors
        factors = (
            o * (1 - tc * tc),
            g * i * (1 - i),
            before(c, cells) * f * (1 - f),
            i * (1 - g * g),
            tc * o * (1 - o),
            f,
        )
        (dh, dc), (gates,) = time_loop(_backward, (dh, dc), (dy, *factors), (weight,), backwards=True)
        return gates, flat(gates).t() @ flat(before(h, outputs)), dh, dc
