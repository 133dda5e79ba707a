"""Differential privacy on the coordinator: who is asked, how far an update may reach, and the noise on their sum.

DP-FedAvg (McMahan et al. 2018, *Learning Differentially Private Recurrent Language Models*, Algorithm 1 with the fixed
denominator of its section 3) and adaptive clipping (Andrew et al. 2021, *Differentially Private Learning with Adaptive
Clipping*, Algorithm 1). The noise is counted in :mod:`broker.accountant`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_fl.aggregation.rules import Rule, fixed_mean
from edge_fl.core.layout import Layout
from edge_fl.core.secret_draws import SecretStream
from edge_fl.core.server_half import Change, State
from edge_fl.runs.config import RunConfig
from edge_fl.training.clipping import norm_of
from edge_fl.wire.frame import Frame
from edge_fl.wire.messages import Clipping

__all__ = ["TOLD", "Lots", "Mechanism", "Noised"]

TOLD = 20
"""Clients a round over the deviation of the noise on how many were within the clip (Andrew et al. 2021, section 3)."""
_CLIP = "privacy.clip"
_RATE = 0.2  # of the clip's geometric steps (Andrew et al. 2021, section 3)
_LEAST, _MOST = 1e-6, 1e6
_UNLIKELY = 7.0  # deviations


class Lots:
    """Where a run's noise and choices of devices come from.

    Parameters
    ----------
    seed
        That of a simulation, which repeats itself; None for the operating system's randomness, which nobody can repeat.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed

    def stream(self, purpose: str, round: int) -> SecretStream:
        """The draws for one purpose in one round."""
        if self._seed is None:
            return SecretStream.fresh()
        return SecretStream(f"edge-fl|{self._seed}||{round}|{purpose}|0".encode())

    def draw(self, clients: Sequence[str], chance: float, round: int) -> list[str]:
        """Each of ``clients`` with the same ``chance``, whoever else is drawn, in the order of their ids."""
        pool = sorted(clients)
        drawn = self.stream("privacy-selection", round).uniform(len(pool)) < chance
        return [client for client, picked in zip(pool, drawn, strict=True) if picked]


@dataclass(frozen=True)
class Noised:
    """The ``clip`` of a round, and which share of its updates was within it: with noise, where the clip follows a
    quantile, else None.
    """

    clip: float
    unclipped: float | None


class Mechanism:
    """What a run does for the privacy of its devices.

    It says how devices are to clip, holds what they send to that, gives the rule that divides by a fixed number, and
    puts noise on the change once a round. A clip that follows a quantile then moves. It is part of the model's state.

    Parameters
    ----------
    config
        The run's, with ``privacy`` and its noise.
    layout
        The model's.
    lots
        Where the noise comes from.
    """

    def __init__(self, config: RunConfig, layout: Layout, lots: Lots) -> None:
        assert config.privacy is not None
        self._privacy, self._layout, self._lots = config.privacy, layout, lots
        self._clients, self._by_chance = config.clients_per_round, config.by_chance
        self._clip = config.privacy.clip

    @property
    def rule(self) -> Rule:
        """The sum over a fixed number of clients, whoever answers and whoever holds a row."""
        return fixed_mean(self._clients)

    @property
    def clipping(self) -> Clipping:
        """What devices are asked now."""
        local = self._privacy.kind == "local"
        noise = self._privacy.deviation * self._clip if local else 0.0
        return Clipping(norm=self._clip, noise=noise, tell=self._privacy.quantile is not None)

    def picks(self, clients: Sequence[str], round: int) -> list[str] | None:
        """Whom to ask of ``clients``, each by the same chance; None where the run's policy chooses."""
        if not self._by_chance:
            return None
        return self._lots.draw(clients, self._privacy.chance(self._clients), round)

    def share(self, update: Frame) -> float:
        """The share of an update's change that may count: no device is trusted to have clipped."""
        most, norm = self._clip, norm_of(update.selection, update.values)
        if self._privacy.kind == "local":
            kept = sum(update.values[tensor.name].size for tensor in self._layout.parameters)
            # The norm of so many normals is hardly ever more than 7 above the root of their number.
            most *= 1 + self._privacy.deviation * (math.sqrt(kept) + _UNLIKELY)
        return most / norm if norm > most else 1.0

    def close(self, round: int, change: Change, told: Sequence[bool]) -> tuple[Change, Noised]:
        """``change`` with the noise of ``round``, and what may be told of it; then the clip moves.

        ``told`` is what each update said of its norm. Every call draws anew: one round calls once.
        """
        noised = self._noised(round, change)
        if self._privacy.quantile is None:
            return noised, Noised(self._clip, None)
        before, share = self._clip, self._unclipped(round, told)
        moved = before * math.exp(-_RATE * (share - self._privacy.quantile))
        self._clip = min(max(moved, _LEAST), _MOST)
        return noised, Noised(before, share)

    def state_dict(self) -> State:
        """The clip."""
        return {_CLIP: np.array(self._clip)}

    def load_state_dict(self, learned: State) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._clip = float(learned[_CLIP])

    def _noised(self, round: int, change: Change) -> Change:
        """Each parameter entry of the mean gets noise of deviation z S / m."""
        deviation = self._of_sums * self._clip / self._clients
        if self._privacy.kind == "local" or deviation == 0:
            return change
        stream, result = self._lots.stream("privacy-noise", round), dict(change)
        for tensor in self._layout.parameters:
            result[tensor.name] = change[tensor.name] + deviation * stream.normal(tensor.size).reshape(
                tensor.shape
            )
        return result

    @property
    def _of_sums(self) -> float:
        """The noise multiplier of the sums: more than the run's, where counting norms takes some of the budget
        (Andrew et al. 2021, Theorem 1).
        """
        noise = self._privacy.deviation
        if self._privacy.quantile is None or noise == 0:
            return noise
        return 1 / math.sqrt(noise**-2 - (2 * self._clients / TOLD) ** -2)

    def _unclipped(self, round: int, told: Sequence[bool]) -> float:
        """The noised share of updates within the clip; what is told counts -1/2 or 1/2, which halves what one does."""
        total = sum(within - 0.5 for within in told)
        if self._privacy.deviation:
            stream = self._lots.stream("privacy-quantile", round)
            total += self._clients / TOLD * float(stream.normal(1)[0])
        return total / self._clients + 0.5
