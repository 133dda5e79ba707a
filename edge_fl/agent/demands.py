"""What a device's owner demands of every task, whatever the coordinator asks."""

from dataclasses import dataclass

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.recipes.recipe import open_recipe
from edge_fl.wire.messages import CollectStatistics, Evaluate, Task

__all__ = ["Demands"]

_ROUNDING = 1e-9  # relative: the coordinator multiplies what is divided here


@dataclass(frozen=True)
class Demands:
    """Demands on privacy. A task that does not meet them fails, with the reason.

    Either demand refuses scores and statistics: nothing protects those of a single device.

    Parameters
    ----------
    noise
        The least standard deviation of the noise that the device adds to its update (``serve --dp local``), divided by
        the norm that it clips the update to; None for no demand. What an update tells besides must not depend on the
        device's data: the method draws units without them, and no compressor chooses entries.
    holders
        The update must be masked, and each row of it summed with that of so many devices at least, this one among
        them (``serve --secure-aggregation``); None for no demand. The update's loss and number of samples are told.

    Raises
    ------
    ConfigError
        When ``noise`` is not above 0, or ``holders`` below 2.
    """

    noise: float | None = None
    holders: int | None = None

    def __post_init__(self) -> None:
        if self.noise is not None and not 0 < self.noise < float("inf"):
            raise ConfigError(f"The noise to require is above 0, not {self.noise:g}; change --require-noise.")
        if self.holders is not None and self.holders < 2:
            raise ConfigError(
                f"A sum of {self.holders} devices hides nobody: 2 or more; change --require-secure-aggregation."
            )

    def check(self, task: Task | Evaluate | CollectStatistics) -> None:
        """Raises ConfigError, in one sentence, where ``task`` does not meet them."""
        if self.noise is None and self.holders is None:
            return
        if not isinstance(task, Task):
            raise ConfigError("This device sends no scores and no statistics, by its owner's demand.")
        if self.noise is not None:
            _check_noise(task, self.noise)
        if self.holders is not None and not task.withheld:
            raise ConfigError("This device requires secure aggregation, and the task has none.")


def _check_noise(task: Task, least: float) -> None:
    clipping = task.clipping
    found = 0.0 if clipping is msgspec.UNSET else clipping.noise / clipping.norm
    if found < least * (1 - _ROUNDING):
        raise ConfigError(f"The task adds noise of {found:g} times the clip, and this device requires {least:g}.")
    if clipping is not msgspec.UNSET and clipping.tell:
        raise ConfigError("The task asks whether the update was clipped, and that answer would have no noise.")
    if not open_recipe(task.method, task.parameters).draws_without_data:
        raise ConfigError(f"In '{task.method}' a device's data choose what it sends, and the choice has no noise.")
