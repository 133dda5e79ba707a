"""Whether a round ruined the model, and whose updates are left out when the round's model is made again."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from edge_fl.runs.metrics import RoundMetrics

__all__ = ["Rollback"]

_LAST = 5  # evaluations that a loss is held against
_FIRST = 3  # so many there must be


class Rollback:
    """Holds a model's loss against those of the last rounds.

    A model whose held-out loss is no number, or more than ``factor`` times the median of the last five evaluations, is
    ruined. Its round goes back to the model before. Each update is scored by itself, and the worst 1, 2, 4 ... are left
    out, until the model is not ruined. Where it takes half of the updates, nobody is to blame and the model stays.

    Parameters
    ----------
    factor
        As above; None never goes back.
    """

    def __init__(self, factor: float | None) -> None:
        self.factor = factor
        self._losses: deque[float] = deque(maxlen=_LAST)

    def see(self, metrics: RoundMetrics) -> None:
        """Take note of a finished round."""
        if metrics.loss is not None:
            self._losses.append(metrics.loss)

    def ruined(self, loss: float) -> bool:
        """Whether a model of that held-out loss is."""
        if self.factor is None:
            return False
        if not math.isfinite(loss):
            return True
        return len(self._losses) >= _FIRST and loss > self.factor * median(self._losses)

    def culprits(self, alone: Mapping[str, float], without: Callable[[frozenset[str]], float]) -> frozenset[str]:
        """The clients to leave out: fewer than half, or none where that does not help.

        Parameters
        ----------
        alone
            The loss of the model that each client's update makes by itself.
        without
            Makes the model without some clients, and says its loss.
        """
        worst = sorted(alone, key=lambda client: (-_rank(alone[client]), client))
        count = 1
        while 2 * count < len(worst):
            left_out = frozenset(worst[:count])
            if not self.ruined(without(left_out)):
                return left_out
            count *= 2
        return frozenset()


def _rank(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
