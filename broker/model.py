"""The global model: its weights, its version, its frames, and how a round's updates change it."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.sums import accumulator, device_here
from edge_fl.aggregation.rules import Accumulator
from edge_fl.compressors.base import SendsChanges
from edge_fl.core.divergence import max_change
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import State
from edge_fl.methods.capabilities import ClientReport
from edge_fl.recipes.recipe import Recipe
from edge_fl.wire.downlink import changed
from edge_fl.wire.frame import Frame, Header, decode_frame, encode_frame
from edge_fl.wire.values import FLOAT32, flatten

__all__ = ["GlobalModel", "RoundSum"]


class GlobalModel:
    """Weights and how often they were aggregated.

    Parameters
    ----------
    layout
        The model's.
    weights
        Full tensors by name.
    recipe
        What makes a change of a round's updates.
    run
        The run's id.
    max_samples
        What a client that trains on more counts for; None for its own.
    """

    def __init__(
        self,
        layout: Layout,
        weights: dict[str, NDArray[np.float32]],
        *,
        recipe: Recipe,
        run: str,
        max_samples: int | None = None,
    ) -> None:
        self.layout, self.weights, self.version = layout, weights, 0
        self._max_samples = max_samples
        self._recipe, self._run = recipe, run
        self._changes: list[bytes] = []  # the last ones, up to the current version
        self._device = device_here()

    def frame(self) -> bytes:
        """The model as it goes to devices in the round that is to come."""
        return encode_frame(self._header(), Pattern.full(self.layout), self.weights)

    def final_frame(self) -> bytes:
        """What the run gives if it ends now, as it goes to devices: the very bytes of :meth:`frame`, unless the recipe
        gives another model than it trains.
        """
        return encode_frame(self._header(), Pattern.full(self.layout), self.final_weights)

    def narrowed_frame(self, weights: Weights, width: int) -> bytes:
        """Of ``weights`` in place of its own, the first units of ``width`` (thousandths), without dropped columns."""
        header = msgspec.structs.replace(self._header(), mode="units")
        return encode_frame(header, Pattern.prefix(self.layout, width), weights)

    @property
    def final_weights(self) -> Weights:
        """What the run gives if it ends now: full tensors by name."""
        return self._recipe.final_weights(self.weights)

    @property
    def max_change(self) -> float:
        """The most by which an update may change any of its parameters."""
        return max_change(self.layout, self.weights)

    def changes_since(self, version: int) -> tuple[bytes, ...] | None:
        """Frames that lead from a ``version`` to the current one; None where the whole model is fewer bytes, or all
        there is (no device holds one before 0).
        """
        behind = self.version - version
        return tuple(self._changes[-behind:]) if 0 < behind <= len(self._changes) else None

    def begin(self) -> "RoundSum":
        """Sums for the updates of a round, on CUDA where there is one."""
        sums = accumulator(self.layout, self._recipe.rule, self._device)
        return RoundSum(sums, self.version, max_samples=self._max_samples)

    def apply(self, total: "RoundSum") -> float:
        """Apply the recipe's rule to a round's updates, and let its server halves learn.

        Returns the clients' mean training loss, weighted by their samples.
        """
        recipe, number, heard = self._recipe, self.version + 1, total.heard
        change = total.sums.change(self.weights)
        change |= recipe.server_update(
            number, {tensor.name: change[tensor.name] for tensor in self.layout.parameters}
        )
        self.version = number
        if recipe.sends_changes:
            self._follow({name: array.astype(np.float32) for name, array in change.items()})
        else:
            self.weights = {name: _moved(old, change[name]) for name, old in self.weights.items()}
        recipe.learn(number, heard)
        return sum(h.loss * h.samples for h in heard) / sum(h.samples for h in heard)

    def state_dict(self) -> State:
        """What the recipe has learned, and the changes that devices may still ask for."""
        changes = {f"change.{i}": np.frombuffer(frame, np.uint8) for i, frame in enumerate(self._changes)}
        return {**self._recipe.state_dict(), **changes}

    def load_state_dict(self, version: int, weights: dict[str, NDArray[np.float32]], learned: State) -> None:
        """Go on from a version, its weights, and what :meth:`state_dict` gave."""
        self.version, self.weights = version, weights
        self._changes = [
            learned[f"change.{i}"].tobytes() for i in range(sum(k.startswith("change.") for k in learned))
        ]
        self._recipe.load_state_dict(self.layout, learned)

    def _follow(self, change: Weights) -> None:
        """Change as the devices will: by what is left of ``change`` after its encoding."""
        pattern, sender = Pattern.full(self.layout), self._recipe.compressor
        assert sender is not None
        assert isinstance(sender, SendsChanges)
        section = sender.encode_change(flatten(Selection.of(pattern, "units"), change))
        frame = encode_frame(self._header(sender.name), pattern, change, section)
        self.weights = changed(self.weights, decode_frame(frame, self.layout, decoders=self._recipe.decoders))
        self._changes.append(frame)
        whole = 4 * self.layout.size
        while sum(map(len, self._changes)) >= whole:
            self._changes.pop(0)

    def _header(self, values: str = FLOAT32) -> Header:
        return Header(
            kind="model" if values == FLOAT32 else "change",
            run=self._run,
            round=self.version + 1,
            version=self.version,
            layout=self.layout.digest,
            method=self._recipe.name,
            values=values,
            shared=self._recipe.shared() or msgspec.UNSET,
        )


class RoundSum:
    """What a round's updates come to, in the order in which they are added.

    Parameters
    ----------
    sums
        Where they are added.
    version
        That of the model that the round trains.
    max_samples
        What a client that trains on more counts for; None for its own.

    Attributes
    ----------
    heard
        What the server half learns of each.
    """

    def __init__(self, sums: Accumulator, version: int, *, max_samples: int | None = None) -> None:
        self.sums, self.heard = sums, list[ClientReport]()
        self._version, self._max_samples = version, max_samples

    def add(self, tier: int, update: Frame, seconds: float | None = None) -> None:
        """Add the update of a client of ``tier``, ``seconds`` after its task, where that is known.

        An update of a model s versions older counts for 1 / sqrt(1 + s) of what it would (FedBuff, Nguyen et al. 2022,
        section 5).
        """
        header = update.header
        stale = self._version - header.version
        samples = min(header.samples, self._max_samples or header.samples)
        self.sums.add(update.selection, update.values, samples, (1 + stale) ** -0.5 if stale else 1)
        self.heard.append(
            ClientReport(header.client, tier, samples, header.loss, update.pattern, update.sent, seconds)
        )


def _moved(weights: NDArray[np.float32], change: NDArray[np.float64]) -> NDArray[np.float32]:
    """Their sum in float64, rounded once, without memory for it in float64."""
    return np.add(weights, change, out=np.empty_like(weights), casting="same_kind")
