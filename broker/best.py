"""Which round's model a run keeps, where it is not the last: the one of the best score on held-out data."""

from edge_fl.runs.metrics import RoundMetrics

__all__ = ["Best"]


class Best:
    """Looks at finished rounds in their order.

    Parameters
    ----------
    name
        The score, or ``loss``.
    lower
        Whether the smaller of two is the better.

    Attributes
    ----------
    round
        The best one so far; 0 before any was evaluated. Of equals it is the first.
    since
        How many rounds were evaluated after it.
    """

    def __init__(self, name: str, *, lower: bool) -> None:
        self._name, self._sign = name, -1 if lower else 1
        self._value = float("-inf")
        self.round = self.since = 0

    def see(self, metrics: RoundMetrics) -> bool:
        """Take note of a finished round; says whether it is the best so far. A score that is no number never is."""
        found = metrics.loss if self._name == "loss" else metrics.scores.get(self._name)
        if found is None:
            return False
        if self._sign * found > self._value:
            self._value, self.round, self.since = self._sign * found, metrics.round, 0
            return True
        self.since += 1
        return False
