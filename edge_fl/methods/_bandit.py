"""E-UCB, the bandit that chooses FedMP's pruning ratios (Jiang et al., 2022): upper confidence bounds over regions.

Arms are 0, 1 ... n - 1, in an order in which neighbours earn alike. They begin as one region. A region is cut in two
behind each of its arms that is played, or before its last, until every region is a single arm. Plays and what they
earned are discounted by lambda each time another is made, and a region R is worth

    mean discounted reward of R's plays  +  sqrt(2 log(plays of all) / plays of R),

and one that was never played is worth more than any that was.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bandit"]


@dataclass(frozen=True)
class Bandit:
    """What was learned of ``n`` arms; choosing changes nothing, and learning makes another.

    Parameters
    ----------
    plays, rewards
        ``[n]`` float64: how often each arm was played and what it earned, discounted.
    cuts
        ``[n - 1]`` bool: whether a region ends between an arm and the next.
    """

    plays: NDArray[np.float64]
    rewards: NDArray[np.float64]
    cuts: NDArray[np.bool_]

    @classmethod
    def of(cls, arms: int) -> "Bandit":
        """One that knows nothing."""
        return cls(np.zeros(arms), np.zeros(arms), np.zeros(arms - 1, dtype=np.bool_))

    def choose(self, uniform: float) -> int:
        """An arm of the region that is worth most, the first of several; ``uniform`` in [0, 1) tells which of it."""
        starts = np.concatenate([[0], np.flatnonzero(self.cuts) + 1])
        best = int(np.argmax(self._worth(starts)))
        start, end = np.append(starts, len(self.plays))[best : best + 2]
        return int(start + uniform * (end - start))

    def learned(self, arm: int, reward: float, discount: float) -> "Bandit":
        """What is known once ``arm`` has earned ``reward``, with what was known discounted by ``discount``."""
        played, cuts = np.arange(len(self.plays)) == arm, self.cuts.copy()
        if arm < len(cuts) and not cuts[arm]:
            cuts[arm] = True
        elif arm:
            cuts[arm - 1] = True
        return Bandit(discount * self.plays + played, discount * self.rewards + reward * played, cuts)

    def _worth(self, starts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of the regions that begin with these arms."""
        plays, rewards = np.add.reduceat(self.plays, starts), np.add.reduceat(self.rewards, starts)
        never = np.full(len(starts), np.inf)
        worth: NDArray[np.float64] = np.divide(rewards, plays, out=never, where=plays > 0)
        spread = 2 * np.log(max(self.plays.sum(), 1.0))
        worth += np.sqrt(np.divide(spread, plays, out=np.zeros(len(starts)), where=plays > 0))
        return worth
