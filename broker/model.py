"""The global model: its weights, its version, its frames, and how a round's updates change it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.defence import OPEN, Defence
from broker.privacy import Mechanism, Noised
from broker.round_sum import RoundSum, RoundTotal, Summed
from broker.sums import HeldSums, Sums, device_here, sums_of
from edge_fl.aggregation.bounds import Size, median_size
from edge_fl.aggregation.spool import Spool
from edge_fl.compressors.base import SendsChanges
from edge_fl.core.divergence import max_change
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import State
from edge_fl.recipes.recipe import Recipe
from edge_fl.wire.downlink import changed
from edge_fl.wire.frame import Header, decode_frame, encode_frame
from edge_fl.wire.values import FLOAT32, flatten

__all__ = ["Applied", "GlobalModel", "Snapshot"]

_MIDDLE = "bounds.median"


@dataclass(frozen=True)
class Applied:
    """What a round's updates came to: the clients' mean training ``loss``, weighted by their samples.

    ``clipped`` says which share of its change counted, by client, where that was not all: 0 of one left out.
    ``averaged`` rows had too few holders for the robust rule. ``left_out`` is the share of entries that secure
    aggregation left out. In a private run clients withhold their ``loss``, and ``noised`` is what may be told.
    """

    loss: float | None
    clipped: dict[str, float]
    averaged: int
    left_out: float = 0.0
    noised: Noised | None = None


@dataclass(frozen=True)
class Snapshot:
    """A version of the model: its weights, and what the recipe had learned."""

    version: int
    weights: dict[str, NDArray[np.float32]]
    state: State


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
    defence
        How much one client may weigh, and what withstands hostile ones.
    unseen
        Opens the sum of a round, by its number, where a simulation sums as secure aggregation does.
    privacy
        What bounds updates and puts noise on their sum, in place of the recipe's rule; None in most runs.
    """

    def __init__(
        self,
        layout: Layout,
        weights: dict[str, NDArray[np.float32]],
        *,
        recipe: Recipe,
        run: str,
        defence: Defence = OPEN,
        privacy: Mechanism | None = None,
        unseen: Callable[[int], RoundTotal] | None = None,
    ) -> None:
        self.layout, self.weights, self.version = layout, weights, 0
        self._defence, self.privacy, self._unseen = defence, privacy, unseen
        self._middle: Size | None = None  # of the updates of the round before
        self._recipe, self.run = recipe, run
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

    def begin(self) -> RoundTotal:
        """Sums for the updates of a round, on CUDA where there is one."""
        if self._unseen is not None:
            return self._unseen(self.version + 1)
        rule = self._recipe.rule if self.privacy is None else self.privacy.rule
        return self.round_sum(sums_of(self.layout, rule, self._device, self._defence))

    @property
    def mergeable(self) -> bool:
        """Whether workers may add up a round's updates, and get the very sum that is made here."""
        return self._defence.exact and self.privacy is None and self._unseen is None

    def round_sum(self, sums: Sums | HeldSums) -> RoundSum:
        """As :meth:`begin`, in ``sums`` of the recipe's rule, such as those of updates that workers hold."""
        bounds = self._defence.bounds
        if self._recipe.rule.signs:  # a vote has no size
            bounds = replace(bounds, norm=None)
        spool = Spool(self.layout, self._defence.scratch)
        return RoundSum(
            self.layout,
            sums,
            self.version,
            bounds=bounds,
            middle=self._middle,
            spool=spool,
            privacy=self.privacy,
        )

    def apply(self, total: Summed) -> Applied:
        """Apply the recipe's rule to a round's updates, and let its server halves learn.

        In a private run every call draws noise: a round calls once, and gives no model out before it is recorded.
        """
        recipe, number, heard = self._recipe, self.version + 1, total.close()
        if not heard and self.privacy is None:  # a sum that was lost: the model stays
            self.version = number
            return Applied(None, total.clipped, 0)
        change, noised = total.sums.change(self.weights), None
        if self.privacy is not None:
            change, noised = self.privacy.close(number, change, total.told)
        if total.sizes:
            self._middle = _following(self._middle, median_size(total.sizes))
        change |= recipe.server_update(
            number, {tensor.name: change[tensor.name] for tensor in self.layout.parameters}
        )
        self.version = number
        if recipe.sends_changes:
            self._follow({name: array.astype(np.float32) for name, array in change.items()})
        else:
            self.weights = {name: _moved(old, change[name]) for name, old in self.weights.items()}
        recipe.learn(number, heard)
        if self.privacy is not None:
            return Applied(None, total.clipped, total.sums.averaged, noised=noised)
        loss = sum(h.loss * h.samples for h in heard) / sum(h.samples for h in heard)
        return Applied(loss, total.clipped, total.sums.averaged, left_out=total.left_out)

    def state_dict(self) -> State:
        """What the recipe has learned, the changes that devices may still ask for, and the last round's median."""
        changes = {f"change.{i}": np.frombuffer(frame, np.uint8) for i, frame in enumerate(self._changes)}
        middle = {} if self._middle is None else {_MIDDLE: np.array(self._middle)}
        private = {} if self.privacy is None else self.privacy.state_dict()
        return {**self._recipe.state_dict(), **changes, **middle, **private}

    def load_state_dict(self, version: int, weights: dict[str, NDArray[np.float32]], learned: State) -> None:
        """Go on from a version, its weights, and what :meth:`state_dict` gave."""
        self.version, self.weights = version, weights
        self._changes = [
            learned[f"change.{i}"].tobytes() for i in range(sum(k.startswith("change.") for k in learned))
        ]
        self._middle = Size(*map(float, learned[_MIDDLE])) if _MIDDLE in learned else None
        self._recipe.load_state_dict(self.layout, learned)
        if self.privacy is not None:
            self.privacy.load_state_dict(learned)

    def load_older(self, version: int, weights: dict[str, NDArray[np.float32]], learned: State) -> None:
        """Go on from an earlier model as of a newer ``version``, to which no change leads."""
        self.load_state_dict(version, weights, learned)
        self._changes = []

    def snapshot(self) -> Snapshot:
        """What :meth:`go_back` goes back to."""
        state = {name: np.array(array) for name, array in self.state_dict().items()}  # learning may write into it
        return Snapshot(self.version, self.weights, state)

    def go_back(self, to: Snapshot) -> None:
        """Be what the model was."""
        self.load_state_dict(to.version, to.weights, to.state)

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
            run=self.run,
            round=self.version + 1,
            version=self.version,
            layout=self.layout.digest,
            method=self._recipe.name,
            values=values,
            shared=self._recipe.shared() or msgspec.UNSET,
        )


def _following(before: Size | None, middle: Size) -> Size:
    """The median of a round; that of the statistics is the one before where updates held none."""
    return middle if before is None or middle.statistics else middle._replace(statistics=before.statistics)


def _moved(weights: NDArray[np.float32], change: NDArray[np.float64]) -> NDArray[np.float32]:
    """Their sum in float64, rounded once, without memory for it in float64."""
    return np.add(weights, change, out=np.empty_like(weights), casting="same_kind")
