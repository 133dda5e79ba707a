"""FedMP (Jiang et al., 2022): each client trains the units of largest l1 norm of the global model.

A unit's norm is that of its own row with its bias; within each block the S_b largest are kept, ties broken at
random. Residual recovery (R2SP) adds the pruned part of the global model back to each sub-model before the mean,
which in differences is rule ``mean``; the mean is weighted by samples.

The pruning ratio is fixed, by tier (``ratio = "fixed"``), or chosen by the paper's bandit, E-UCB, one a client
(``"bandit"``, :mod:`edge_fl.methods._bandit`), which the server prunes for. Its arms are the multiples of
``granularity`` up to the tier's ratio, of those that leave as many units of every block the first: the paper cuts
regions of any ratios until they are narrower than its theta. A round earns
the client's ratio, as in the paper, the fall of its loss over how far its time is from the mean of the round's clients,

    (l' - l) / l'  /  max(|T - mean T| / mean T, 0.1),

here of relative quantities, at least 0, and with a floor below, as the paper's has no bound; the bound on a region's
worth is made for rewards up to 1, so that each is taken as a share of the largest that any client has earned by then,
which is discounted each round. l' is the loss of the last round that the client took part in; a first round earns
nothing. Seconds are from task to update, so that a bandit's run
on devices is not repeated bit for bit; in a simulation they are an update's bytes times its tier's slowdown.

Drops, in ``units`` mode, the rows and biases of pruned units and the columns that they would feed: the MLP
784-256-256-10 at p = 0.5 sends 784*128 + 128 + 128*128 + 128 + 128*10 + 10 numbers, and one bit a unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern, kept_counts
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Weights
from edge_fl.core.server_half import State, Stateful
from edge_fl.core.share import Share
from edge_fl.methods._bandit import Bandit
from edge_fl.methods.base import (
    Ask,
    DropoutMethod,
    DropoutParameters,
    Job,
    LocalHalf,
    LocalStep,
    assigned_half,
)
from edge_fl.methods.capabilities import ClientReport, LearnsFromReports

__all__ = ["METHOD", "FedMp", "FedMpParameters", "unit_norms"]

_NEAR = 0.1  # a client's time is as good as the mean where it is no further from it


class FedMpParameters(DropoutParameters, frozen=True, forbid_unknown_fields=True):
    """What FedMP takes.

    Parameters
    ----------
    dropout
        The pruning ratio in [0, 1), one a tier; the last serves every tier beyond. Of a bandit it is the highest.
    ratio
        ``fixed`` prunes by ``dropout``; ``bandit`` lets E-UCB choose a ratio for each client.
    granularity
        The distance between ratios that a bandit may choose.
    discount
        The factor lambda in (0, 1] by which a client's earlier rounds count less with each of its rounds.
    """

    ratio: Literal["fixed", "bandit"] = "fixed"
    granularity: Share = 100
    discount: float = 0.99

    def __post_init__(self) -> None:
        DropoutParameters.__post_init__(self)
        if self.granularity < 1 or not 0 < self.discount <= 1:
            raise ConfigError("FedMP's granularity must be at least 0.001 and its discount in (0, 1].")
        if self.ratio == "bandit" and min(self.dropout) < self.granularity:
            raise ConfigError(
                "FedMP's bandit chooses among ratios up to --dropout: it must be at least the granularity."
            )


@dataclass(frozen=True)
class _Known:
    """What the server knows of a client: its bandit, and the loss of its last round (0: there was none)."""

    bandit: Bandit
    loss: float


class FedMp(DropoutMethod, LearnsFromReports, Stateful):
    """Each client prunes the units that weigh least in the global model."""

    name = "fedmp"
    Parameters = FedMpParameters
    parameters: FedMpParameters
    rule = "mean"  # what a client pruned counts as unchanged
    mode: Mode = "units"  # a pruned unit's columns stay home with its row

    def __init__(self, parameters: FedMpParameters) -> None:
        super().__init__(parameters)
        self._known: dict[str, _Known] = {}
        self._most = 0.0
        self._norms: tuple[int, NDArray[np.float64]] | None = None

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """S_b of each block at the tier's ratio; with a bandit all units, which is the most that it may ask for."""
        return super().counts(layout, tier) if self._fixed else kept_counts(layout, 0)

    def programs(self, layout: Layout, tier: int) -> list[tuple[str, dict[str, int]]]:
        """One for each ratio that may be asked for."""
        ratios = [self.dropout(tier)] if self._fixed else self._ratios(layout, tier)
        return [(self.variant, kept_counts(layout, ratio)) for ratio in ratios]

    def assign(self, ask: Ask) -> Pattern | None:
        """What is left of the model at the ratio that the client's bandit chooses; None where ratios are fixed.

        All of it for a rehearsal, as a client may be asked for that, too.
        """
        if self._fixed:
            return None
        if not ask.weights:
            return Pattern.full(ask.layout)
        draw = Stream.of(seed=ask.seed, purpose="fedmp-ratio", client=ask.client, round=ask.round)
        ratios = self._ratios(ask.layout, ask.tier)
        bandit = self._of(ask.client, ask.tier, len(ratios)).bandit
        ratio = ratios[bandit.choose(int(draw.uint32(1)[0]) / 2**32)]
        ties = Stream.of(seed=ask.seed, purpose="fedmp-ties", client=ask.client, round=ask.round)
        return Pattern.highest(ask.layout, ratio, self._norms_of(ask), ties)

    def learn(self, round: int, reports: Sequence[ClientReport]) -> None:
        """Let each client's ratio earn what the module says."""
        del round
        if self._fixed:
            return
        times = [update.seconds for update in reports if update.seconds is not None]
        mean = fmean(times) if times else 0.0
        earned = {update.client: self._earned(update, mean) for update in reports}
        largest = max((reward for reward in earned.values() if reward is not None), default=0.0)
        self._most = max(largest, self.parameters.discount * self._most)
        for update in reports:
            owner, reward = self._owner(update.client, update.tier), earned[update.client]
            kept = [counts for _, counts in self.programs(update.pattern.layout, update.tier)]
            bandit = self._of(update.client, update.tier, len(kept)).bandit
            if reward is not None:
                share = reward / self._most if self._most else 0.0
                bandit = bandit.learned(kept.index(update.pattern.counts), share, self.parameters.discount)
            self._known[owner] = _Known(bandit, update.loss)

    def state_dict(self) -> State:
        """Each client's bandit (``[n]`` float64 plays and rewards, ``[n - 1]`` bool cuts) and last loss, by tier; the
        largest reward.
        """
        learned: dict[str, NDArray[Any]] = {} if self._fixed else {"most": np.array(self._most)}
        for owner, known in self._known.items():
            bandit = known.bandit
            learned |= {f"plays|{owner}": bandit.plays, f"rewards|{owner}": bandit.rewards}
            learned |= {f"cuts|{owner}": bandit.cuts, f"loss|{owner}": np.array(known.loss)}
        return learned

    def load_state_dict(self, layout: Layout, learned: State) -> None:
        """Go on with the bandits that :meth:`state_dict` told, in place of all others."""
        del layout
        self._known.clear()
        self._most = float(learned.get("most", 0.0))
        for name in learned:
            what, _, owner = name.partition("|")
            if what == "loss":
                bandit = Bandit(learned[f"plays|{owner}"], learned[f"rewards|{owner}"], learned[f"cuts|{owner}"])
                self._known[owner] = _Known(bandit, float(learned[name]))

    def local(self, job: Job) -> LocalHalf:
        """Prune the global model once a round, or train what the server has pruned."""
        if not self._fixed:
            return assigned_half(job)
        ties = Stream.of(seed=job.seed, purpose="fedmp-ties", client=job.client, round=job.round)
        norms = unit_norms(job.layout, job.weights)
        return LocalHalf(LocalStep(Pattern.highest(job.layout, self.dropout(job.tier), norms, ties)))

    @property
    def _fixed(self) -> bool:
        return self.parameters.ratio == "fixed"

    def _ratios(self, layout: Layout, tier: int) -> list[int]:
        """The bandit's arms, in thousandths: no two that it could not tell apart."""
        first: dict[tuple[int, ...], int] = {}
        for ratio in range(0, self.dropout(tier) + 1, self.parameters.granularity):
            first.setdefault(tuple(kept_counts(layout, ratio).values()), ratio)
        return list(first.values())

    def _owner(self, client: str, tier: int) -> str:
        """Whose bandit it is: a client has one of each tier that it trained in, as their arms differ."""
        return f"{min(tier, self.tiers - 1)}|{client}"

    def _of(self, client: str, tier: int, arms: int) -> _Known:
        return self._known.get(self._owner(client, tier)) or _Known(Bandit.of(arms), 0.0)

    def _earned(self, update: ClientReport, mean: float) -> float | None:
        """The fall of its loss over its distance from the round's mean time; None where either is unknown."""
        known = self._known.get(self._owner(update.client, update.tier))
        if known is None or known.loss <= 0 or update.seconds is None:
            return None
        apart = abs(update.seconds - mean) / mean if mean > 0 else 0.0
        return max((known.loss - update.loss) / known.loss, 0.0) / max(apart, _NEAR)

    def _norms_of(self, ask: Ask) -> NDArray[np.float64]:
        """Those of the round's model, found once."""
        if self._norms is None or self._norms[0] != ask.round:
            self._norms = ask.round, unit_norms(ask.layout, ask.weights)
        return self._norms[1]


def unit_norms(layout: Layout, weights: Weights) -> NDArray[np.float64]:
    """The l1 norm of each unit's own entries: its row of every trained tensor of its layer, bias included.

    Parameters
    ----------
    weights
        Full tensors by name.

    Returns
    -------
    ``[J]`` float64, over the blocks of ``layout`` in order.
    """
    norms = {block.name: np.zeros(block.size) for block in layout.blocks}
    for tensor in layout.parameters:
        magnitudes = np.abs(weights[tensor.name].astype(np.float64))
        for axis, segments in enumerate(tensor.rows):
            along = magnitudes.sum(axis=tuple(a for a in range(magnitudes.ndim) if a != axis))
            start = 0
            for segment in segments:
                length = segment.length(layout.sizes)
                if segment.block is not None:
                    own = along[start : start + length].reshape(segment.outer, -1, segment.inner)
                    norms[segment.block] += own.sum(axis=(0, 2))
                start += length
    return np.concatenate([norms[block.name] for block in layout.blocks]) if norms else np.zeros(0)


METHOD = FedMp
