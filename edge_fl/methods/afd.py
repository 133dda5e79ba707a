"""AFD, adaptive federated dropout (Bouacida et al., 2021): sub-models that lower the loss are kept and remembered.

The server holds a map of scores E, one a unit, all 0 at first, and draws S_b units of each block with
probability proportional to them. When a round's loss l is below l', that of the round before, the units k of
its sub-model score ``E_k <- E_k + (l' - l) / l'`` and the sub-model is kept for the next round; otherwise it is
drawn anew. A loss is the mean over the local steps, as the update tells it.

Drops what FedDrop drops: in ``units`` mode the MLP 784-256-256-10 at p = 0.5 sends 784*128 + 128 + 128*128 +
128 + 128*10 + 10 numbers, in ``rows`` mode 784*128 + 128 + 256*128 + 128 + 2560 + 10. Recurrent layers stay whole.

Where the paper offers two ways, or can be read in two, both are parameters:

- ``maps = "multi"`` (Multi-Model AFD) holds a map for each client and compares the rounds it took part in;
  ``"single"`` (Single-Model AFD) has one map and one sub-model for all, and compares the mean loss of a round's
  clients. Tiers with rates of their own cannot share a sub-model, so a map is then one tier's. In a buffered run whose
  updates are of several sub-models, each of these is scored by the loss of its own.
- ``floor`` is a weight that every unit has besides its score. At 0, which is to the letter, the first sub-model
  that improved is the only one with a score, and so is drawn for ever.
- ``mode``, ``rule`` and ``scale`` are FedDrop's.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.server_half import State, Stateful
from edge_fl.methods._sub_model import SubModelMethod, SubModelParameters, with_recurrent
from edge_fl.methods.base import Ask
from edge_fl.methods.capabilities import ClientReport, LearnsFromReports

__all__ = ["METHOD", "Afd", "AfdParameters", "draw_by_score"]


class AfdParameters(SubModelParameters, frozen=True, forbid_unknown_fields=True):
    """What AFD takes beside FedDrop's parameters.

    Parameters
    ----------
    maps
        ``multi`` keeps a map of scores for each client, ``single`` one for all.
    floor
        A weight that every unit has beside its score, at least 0.
    """

    maps: Literal["multi", "single"] = "multi"
    floor: float = 0.0

    def __post_init__(self) -> None:
        SubModelParameters.__post_init__(self)
        if not (isfinite(self.floor) and self.floor >= 0):
            raise ConfigError("AFD's floor must be at least 0.")


@dataclass
class _Map:
    """What was learned: scores E (``[J]`` float64), the last loss, and the sub-model to keep, if it lowered it."""

    scores: NDArray[np.float64]
    loss: float = float("-inf")  # nothing is below it, so a first round improves on nothing
    kept: Pattern | None = None

    def learn(self, loss: float, pattern: Pattern) -> None:
        improved = loss < self.loss
        if improved:
            self.scores += pattern.mask * ((self.loss - loss) / self.loss)
        self.kept = pattern if improved else None
        self.loss = loss


class Afd(SubModelMethod, LearnsFromReports, Stateful):
    """The server draws units by the scores that earlier rounds earned them."""

    name = "afd"
    Parameters = AfdParameters
    parameters: AfdParameters

    def __init__(self, parameters: AfdParameters) -> None:
        super().__init__(parameters)
        self._maps: dict[str, _Map] = {}

    def assign(self, ask: Ask) -> Pattern:
        """The sub-model that lowered the loss, where it is of the tier's size, or one drawn by score; the same until
        more is learned.
        """
        owner = self._owner(ask.client, ask.tier)
        learned = self._maps.get(owner)
        kept = None if learned is None else learned.kept
        if kept is not None and kept.counts == self.counts(ask.layout, ask.tier):
            return kept
        scores = np.zeros(ask.layout.units) if learned is None else learned.scores
        stream = Stream.of(seed=ask.seed, purpose="afd-pattern", client=owner, round=ask.round)
        return with_recurrent(
            draw_by_score(ask.layout, self.dropout(ask.tier), scores + self.parameters.floor, stream)
        )

    def learn(self, round: int, reports: Sequence[ClientReport]) -> None:
        """Score the sub-models of a closed round by how much their loss fell."""
        del round
        losses = defaultdict(list)
        for update in reports:
            losses[self._owner(update.client, update.tier), update.pattern].append(update.loss)
        for (owner, pattern), of_clients in losses.items():
            learned = self._maps.setdefault(owner, _Map(np.zeros(pattern.layout.units)))
            learned.learn(float(np.mean(of_clients)), pattern)

    def state_dict(self) -> State:
        """Each owner's scores ``[J]``, last loss, and kept sub-model (``[J]`` bits) where there is one."""
        learned: dict[str, NDArray[Any]] = {}
        for owner, held in self._maps.items():
            learned |= {f"scores|{owner}": held.scores, f"loss|{owner}": np.array(held.loss)}
            if held.kept is not None:
                learned[f"kept|{owner}"] = held.kept.mask
        return learned

    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Open the maps that :meth:`state_dict` told, in place of all others."""
        self._maps.clear()
        for name in learned:
            what, _, owner = name.partition("|")
            if what == "scores":
                kept = learned.get(f"kept|{owner}")
                pattern = None if kept is None else Pattern(layout, kept)
                self._maps[owner] = _Map(learned[name], float(learned[f"loss|{owner}"]), pattern)

    def _owner(self, client: str, tier: int) -> str:
        """Whose map it is, as a name that also keys the draws; one of a tier is no client's."""
        return client if self.parameters.maps == "multi" else f"|{min(tier, len(self.parameters.dropout) - 1)}"


def draw_by_score(layout: Layout, dropout: int, weights: NDArray[np.float64], stream: Stream) -> Pattern:
    """Draw S_b units of each block without replacement, with probability proportional to ``weights``.

    Efraimidis and Spirakis (2006): the units whose exponential arrivals ``-log(u) / weight`` come first. Units of
    weight 0 never arrive, and fill at random what the others leave.

    Parameters
    ----------
    dropout
        p in thousandths.
    weights
        ``[J]`` float64, at least 0.
    """
    uniform = (stream.uint32(layout.units).astype(np.float64) + 0.5) / 2.0**32
    never = np.full(layout.units, np.inf)
    arrivals = np.divide(-np.log(uniform), weights, out=never, where=weights > 0)
    return Pattern.highest(layout, dropout, -arrivals, stream)


METHOD = Afd
