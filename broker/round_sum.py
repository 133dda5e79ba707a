"""What a round's updates come to: each is held to limits, and summed, or left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from broker.privacy import Mechanism
from broker.sums import HeldSums, MakesChange, Sums
from edge_fl.aggregation.bounds import ENOUGH, WHOLE, Bounds, Clip, Size, median_size, size_of
from edge_fl.aggregation.exact_sums import Held
from edge_fl.aggregation.spool import Spool
from edge_fl.core.layout import Layout
from edge_fl.methods.capabilities import ClientReport
from edge_fl.wire.frame import Frame

__all__ = ["RoundSum", "RoundTotal", "Summed"]

_ROUNDED = 1 - 1e-6  # what is above that another language may have rounded up, which is no lie


@dataclass(frozen=True)
class _Arrived:
    """An update, and where its values are, if not here."""

    tier: int
    frame: Frame
    seconds: float | None
    held: Held | None = None


class Summed(Protocol):
    """What a round's updates came to, by whatever summed them; see :class:`RoundSum`."""

    clipped: dict[str, float]

    @property
    def sizes(self) -> Sequence[Size]:
        """Those of all updates, where limits are learned from them."""

    @property
    def told(self) -> Sequence[bool]:
        """Which updates of a private run were within the clip, as they say."""

    @property
    def sums(self) -> MakesChange:
        """What makes the change of the model, once it is closed."""

    @property
    def left_out(self) -> float:
        """The share of the updates' entries that did not count, as too few clients hold them."""

    def close(self) -> Sequence[ClientReport]:
        """Take no more; what the server half learns of each update."""


class RoundTotal(Summed, Protocol):
    """A sum that updates are added to as they come."""

    def add(self, tier: int, update: Frame, seconds: float | None = None) -> None:
        """Add the update of a client of ``tier``, ``seconds`` after its task, where that is known."""


class RoundSum:
    """What a round's updates come to, in the order in which they are added.

    Each is held to limits by the median of the round before. Those of the first round wait on disk for their own, as do
    those of the first round with statistics, and suspicious ones: who is that by the median of a round of five updates
    or more, too, is left out.

    Parameters
    ----------
    layout
        The model's.
    sums
        Where they are added.
    version
        That of the model that the round trains.
    bounds
        How much one client may weigh.
    middle
        The median of the round before; None for the first.
    spool
        Where updates wait.
    privacy
        What bounds updates in place of ``bounds``, in a private run.

    Attributes
    ----------
    sizes
        Those of all updates, where limits are learned from them.
    clipped
        By client, the share of its change that counts, where that is not all; 0 of one that is left out.
    told
        Of each private update, whether it was within the norm before it was clipped.
    """

    def __init__(
        self,
        layout: Layout,
        sums: Sums | HeldSums,
        version: int,
        *,
        bounds: Bounds,
        middle: Size | None,
        spool: Spool,
        privacy: Mechanism | None = None,
    ) -> None:
        self.told, self._privacy = list[bool](), privacy
        self.sums, self.sizes, self.clipped, self.left_out = sums, list[Size](), dict[str, float](), 0.0
        # Asked here alone: of a protocol Python looks at every member.
        self._of_held: HeldSums | None = sums if isinstance(sums, HeldSums) else None
        self._of_values: Sums | None = None if isinstance(sums, HeldSums) else sums
        self._layout, self._version, self._bounds, self._spool = layout, version, bounds, spool
        self._limits = bounds.limits(middle)
        self._first = middle is None
        self._first_statistics = middle is not None and not middle.statistics
        self._heard: list[ClientReport] = []
        self._waiting: list[
            tuple[_Arrived, Size]
        ] = []  # until the round's median is known; values lie in the spool

    def add(self, tier: int, update: Frame, seconds: float | None = None) -> None:
        """Add the update of a client of ``tier``, ``seconds`` after its task, where that is known.

        An update of a model s versions older counts for 1 / sqrt(1 + s) of what it would (FedBuff, Nguyen et al. 2022,
        section 5).
        """
        if self._privacy is not None:
            self._add_private(update, self._privacy)
            return
        self._take(_Arrived(tier, update, seconds))

    def add_held(self, tier: int, update: Frame, held: Held, seconds: float | None = None) -> None:
        """As :meth:`add`, of an update whose values a worker has: in ``update`` there are none."""
        self._take(_Arrived(tier, update, seconds, held))

    def _take(self, arrived: _Arrived) -> None:
        if not self._bounds.learned:
            self._count(arrived, WHOLE)
            return
        update, held = arrived.frame, arrived.held
        size = size_of(self._layout, update.values, update.header.samples) if held is None else held.size
        self.sizes.append(size)
        clip = self._limits.clip(size)
        unknown = self._first or (self._first_statistics and size.statistics > 0)
        if not unknown and not clip.suspicious:
            self._count(arrived, clip)
            return
        if held is None:
            self._spool.append(update.values)
            arrived = replace(arrived, frame=replace(update, values={}))
        self._waiting.append((arrived, size))

    def close(self) -> Sequence[ClientReport]:
        """Add what waits; what the server half learns of each update."""
        if self._waiting:
            own = self._bounds.limits(median_size(self.sizes))
            if self._first:
                self._limits = own
            elif self._first_statistics:
                self._limits = replace(self._limits, statistics=own.statistics)
            spooled = iter(self._spool)
            for arrived, size in self._waiting:
                frame = arrived.frame if arrived.held else replace(arrived.frame, values=next(spooled))
                if own.clip(size).suspicious and len(self.sizes) >= ENOUGH:
                    self.clipped[frame.header.client] = 0.0
                else:
                    self._count(replace(arrived, frame=frame), self._limits.clip(size))
            self._waiting.clear()
            self._spool.close()
        return self._heard

    def _add_private(self, update: Frame, privacy: Mechanism) -> None:
        """Add it as one client's, held to the clip; nobody learns from it, and statistics do not count."""
        share = privacy.share(update)
        if share < _ROUNDED:
            self.clipped[update.header.client] = share
        assert self._of_values is not None  # workers are not shown private updates
        self._of_values.add(update.selection, update.values, 1, clip=Clip(share, 0.0))
        self.told.append(update.header.unclipped is True)

    def _count(self, arrived: _Arrived, clip: Clip) -> None:
        update, header = arrived.frame, arrived.frame.header
        stale = self._version - header.version
        samples = max(1, int(min(header.samples, self._limits.samples)))
        discount = (1 + stale) ** -0.5 if stale else 1
        if min(clip) < 1:
            self.clipped[header.client] = min(clip)
        if self._of_held is not None:
            assert arrived.held is not None
            self._of_held.add_held(arrived.held, samples, discount, clip=clip)
        else:
            assert self._of_values is not None
            self._of_values.add(update.selection, update.values, samples, discount, clip=clip)
        self._heard.append(
            ClientReport(
                header.client, arrived.tier, samples, header.loss, update.pattern, update.sent, arrived.seconds
            )
        )
