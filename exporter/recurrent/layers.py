"""What nn.LSTM, nn.GRU and nn.RNN are replaced by: the same weights by the same names, of any number of units."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_fl.core.errors import UnsupportedModelError
from exporter.recurrent.elman import elman
from exporter.recurrent.gates import flat
from exporter.recurrent.gru import gru
from exporter.recurrent.known_zeros import is_known_zero
from exporter.recurrent.loop import Tensors
from exporter.recurrent.lstm import lstm
from exporter.recurrent.states import LayerStates, initial_states

__all__ = ["ElmanLayers", "GruLayers", "LstmLayers", "RecurrentLayers"]


class RecurrentLayers(nn.Module):
    """Recurrent layers on top of one another, in one direction or both.

    Every size is read from the weights that a call finds: hidden units from ``weight_hh``, so that each layer
    may keep units of its own.

    Parameters
    ----------
    original
        The module to stand in for; its parameters are taken over by name.
    """

    states = 1
    """Tensors of state a layer."""

    def __init__(self, original: nn.RNNBase) -> None:
        super().__init__()
        self.num_layers = original.num_layers
        self.batch_first = original.batch_first
        self.bidirectional = original.bidirectional
        self.bias = original.bias
        self.dropout = original.dropout
        for name, parameter in original.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.train(original.training)

    def flatten_parameters(self) -> None:
        """Do nothing: models call it for cuDNN."""

    def suffixes(self) -> list[str]:
        """What the names of a layer's parameters end in, a layer and direction each, in torch's order."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{layer}{direction}" for layer in range(self.num_layers) for direction in directions]

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Run over sequences as torch does.

        Parameters
        ----------
        x
            ``[T, B, features]``, ``[B, T, features]`` if batch first, or ``[T, features]``.
        hx
            First states ``[layers, B, H]``, for an LSTM a pair; zeros when there are none.

        Returns
        -------
        The top layer's outputs, in the order of ``x``, and the last states as :class:`LayerStates`.

        Raises
        ------
        UnsupportedModelError
            On a packed sequence, and on states that do not fit the units kept.
        """
        if not isinstance(x, Tensor):
            raise UnsupportedModelError(
                "A recurrent layer is given a packed sequence: pad the sequences and give it the tensor."
            )
        batched = x.dim() == 3
        sequence = x.transpose(0, 1) if batched and self.batch_first else x
        first = self._first(hx, batched)
        outputs, last = self._run(sequence if batched else x.unsqueeze(1), first)
        if not batched:
            return outputs.squeeze(1), _result([[state.squeeze(0) for state in kind] for kind in last])
        # Contiguous, as a linear layer on what is not becomes one product a sample.
        return outputs.transpose(0, 1).contiguous() if self.batch_first else outputs, _result(last)

    def _first(self, hx: Any, batched: bool) -> list[Any]:
        if hx is None:
            return [None] * self.states
        given = [None if is_known_zero(state) else state for state in ([hx] if self.states == 1 else hx)]
        return given if batched else [None if state is None else state.unsqueeze(1) for state in given]

    def _run(self, x: Tensor, first: list[Any]) -> tuple[Tensor, list[list[Tensor]]]:
        suffixes = self.suffixes()
        weights = [getattr(self, f"weight_hh{suffix}") for suffix in suffixes]
        starts = [initial_states(given, weights, x) for given in first]
        last: list[list[Tensor]] = [[] for _ in starts]
        width = 2 if self.bidirectional else 1
        for bottom in range(0, len(suffixes), width):
            outputs = []
            for number in range(bottom, bottom + width):
                backwards = suffixes[number].endswith("_reverse")
                output, *states = self._direction(
                    x, suffixes[number], [kind[number] for kind in starts], backwards
                )
                outputs.append(output)
                for kind, state in zip(last, states, strict=True):
                    kind.append(state)
            x = torch.cat(outputs, 2) if self.bidirectional else outputs[0]
            if bottom + width < len(suffixes):
                x = functional.dropout(x, self.dropout, self.training)
        return x, last

    def _direction(self, x: Tensor, suffix: str, start: Sequence[Tensor], backwards: bool) -> Tensors:
        weight, hidden = getattr(self, f"weight_ih{suffix}"), getattr(self, f"weight_hh{suffix}")
        biases = (getattr(self, f"bias_ih{suffix}"), getattr(self, f"bias_hh{suffix}")) if self.bias else None
        bias, hidden_bias = self._biases(biases)
        # On a matrix: given more axes, torch multiplies sample by sample or fixes their lengths in what it traces.
        projected = functional.linear(flat(x), weight, bias).reshape(x.shape[0], x.shape[1], weight.shape[0])
        outputs, *states = self._layer(projected.flip(0) if backwards else projected, hidden, hidden_bias, start)
        return (outputs.flip(0) if backwards else outputs, *states)

    def _biases(self, biases: tuple[Tensor, Tensor] | None) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the input's product, and what remains to be added to the state's."""
        return (biases[0] + biases[1], None) if biases else (None, None)

    @abstractmethod
    def _layer(self, projected: Tensor, weight: Tensor, bias: Tensor | None, start: Sequence[Tensor]) -> Tensors:
        """One layer in one direction: its outputs ``[T, B, H]`` and last states."""


class LstmLayers(RecurrentLayers):
    """In place of nn.LSTM."""

    states = 2

    def _layer(self, projected: Tensor, weight: Tensor, bias: Tensor | None, start: Sequence[Tensor]) -> Tensors:
        return lstm(projected, weight, *start)


class GruLayers(RecurrentLayers):
    """In place of nn.GRU."""

    def _biases(self, biases: tuple[Tensor, Tensor] | None) -> tuple[Tensor | None, Tensor | None]:
        # The reset gate multiplies the state's product with its bias.
        return biases or (None, None)

    def _layer(self, projected: Tensor, weight: Tensor, bias: Tensor | None, start: Sequence[Tensor]) -> Tensors:
        return gru(projected, weight, weight.new_zeros(weight.shape[0]) if bias is None else bias, *start)


class ElmanLayers(RecurrentLayers):
    """In place of nn.RNN."""

    def __init__(self, original: nn.RNN) -> None:
        super().__init__(original)
        self.nonlinearity = original.nonlinearity

    def _layer(self, projected: Tensor, weight: Tensor, bias: Tensor | None, start: Sequence[Tensor]) -> Tensors:
        return elman(projected, weight, start[0], self.nonlinearity)


def _result(last: list[list[Tensor]]) -> Any:
    kinds = [LayerStates(kind) for kind in last]
    return tuple(kinds) if len(kinds) > 1 else kinds[0]
