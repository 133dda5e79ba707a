"""What a device's owner demands of every task, whatever the coordinator asks."""

from dataclasses import dataclass

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.wire.messages import CollectStatistics, Evaluate, Task

__all__ = ["Demands"]

_ROUNDING = 1e-9  # relative: the coordinator multiplies what is divided here


@dataclass(frozen=True)
class Demands:
    """Demands on privacy. A task that does not meet them fails, with the reason.

    Parameters
    ----------
    noise
        The least standard deviation of the noise that the device adds to its update (``serve --dp local``), divided by
        the norm that it clips the update to; None for no demand. Scores and statistics of the device's data have no
        noise: it gives none.
    secure_aggregation
        Whether the device's update must be masked, so that the coordinator sees sums alone. Statistics are not masked:
        it gives none.

    Raises
    ------
    ConfigError
        When ``noise`` is not above 0.
    """

    noise: float | None = None
    secure_aggregation: bool = False

    def __post_init__(self) -> None:
        if self.noise is not None and not 0 < self.noise < float("inf"):
            raise ConfigError(f"The noise to require is above 0, not {self.noise:g}; change --require-noise.")

    def check(self, task: Task | Evaluate | CollectStatistics) -> None:
        """Raises ConfigError, in one sentence, where ``task`` does not meet them."""
        if reason := self._noise(task) or self._masks(task):
            raise ConfigError(reason)

    def _noise(self, task: Task | Evaluate | CollectStatistics) -> str:
        if self.noise is None:
            return ""
        if not isinstance(task, Task):
            return "This device tells nothing of its data without noise (--require-noise)."
        clipping = task.clipping
        found = 0.0 if clipping is msgspec.UNSET else clipping.noise / clipping.norm
        if found >= self.noise * (1 - _ROUNDING):
            return ""
        return f"The task adds noise of {found:g} times the clip, and this device requires {self.noise:g}."

    def _masks(self, task: Task | Evaluate | CollectStatistics) -> str:
        if not self.secure_aggregation or isinstance(task, Evaluate):
            return ""
        if isinstance(task, Task) and task.withheld:
            return ""
        return "This device requires secure aggregation, and the task has none."
