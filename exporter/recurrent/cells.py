"""What nn.LSTMCell, nn.GRUCell and nn.RNNCell are replaced by: one step, of any number of units."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from exporter.recurrent.gates import gate_blocks
from exporter.recurrent.states import initial_states

__all__ = ["ElmanCell", "GruCell", "LstmCell", "RecurrentCell"]


class RecurrentCell(nn.Module):
    """One step of one recurrent layer, its units read from ``weight_hh``.

    Parameters
    ----------
    original
        The module to stand in for; its parameters are taken over by name.
    """

    def __init__(self, original: nn.RNNCellBase) -> None:
        super().__init__()
        self.weight_ih: Tensor
        self.weight_hh: Tensor
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            self.register_parameter(name, getattr(original, name))
        self.train(original.training)

    def _products(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The products x W_ih^T + b_ih and h W_hh^T + b_hh, ``[..., gates * H]``."""
        ih, hh = getattr(self, "bias_ih", None), getattr(self, "bias_hh", None)
        return functional.linear(x, self.weight_ih, ih), functional.linear(h, self.weight_hh, hh)

    def _start(self, hx: Any, x: Tensor) -> Tensor:
        given = None if hx is None else [hx]
        state = initial_states(given, [self.weight_hh], x if x.dim() > 1 else x.unsqueeze(0))[0]
        return state.squeeze(0) if hx is None and x.dim() == 1 else state


class LstmCell(RecurrentCell):
    """In place of nn.LSTMCell."""

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """From x ``[B, features]`` and h, c ``[B, H]`` (zeros when there are none) to the next h and c."""
        h, c = (self._start(state, x) for state in (hx or (None, None)))
        ours, state = self._products(x, h)
        i, f, g, o = gate_blocks(ours + state, 4, self.weight_hh.shape[1])
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class GruCell(RecurrentCell):
    """In place of nn.GRUCell."""

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """From x ``[B, features]`` and h ``[B, H]`` (zeros when there is none) to the next h."""
        h = self._start(hx, x)
        blocks = (gate_blocks(product, 3, self.weight_hh.shape[1]) for product in self._products(x, h))
        (xr, xz, xn), (hr, hz, hn) = blocks
        n = (xn + (xr + hr).sigmoid() * hn).tanh()
        return n + (xz + hz).sigmoid() * (h - n)


class ElmanCell(RecurrentCell):
    """In place of nn.RNNCell."""

    def __init__(self, original: nn.RNNCell) -> None:
        super().__init__(original)
        self.nonlinearity = original.nonlinearity

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """From x ``[B, features]`` and h ``[B, H]`` (zeros when there is none) to the next h."""
        ours, state = self._products(x, self._start(hx, x))
        total = ours + state
        return torch.tanh(total) if self.nonlinearity == "tanh" else torch.relu(total)
