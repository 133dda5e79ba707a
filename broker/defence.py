"""What a run is defended by: how much one client may weigh, and a rule that withstands hostile ones."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edge_fl.aggregation.bounds import Bounds
from edge_fl.aggregation.robust.base import RobustRule, open_robust
from edge_fl.runs.config import RunConfig

__all__ = ["OPEN", "Defence", "bounds_of"]


@dataclass(frozen=True)
class Defence:
    """``bounds`` on one client, a ``robust`` rule if any, and the folder in which updates wait for either.

    ``exact`` sums are the same bits in any order.
    """

    bounds: Bounds = field(default_factory=Bounds)
    robust: RobustRule | None = None
    scratch: Path | None = None
    exact: bool = False

    @classmethod
    def of(cls, config: RunConfig, scratch: Path) -> "Defence":
        """What ``config`` asks for; ConfigError where there is no such rule."""
        robust = None if config.robust is None else open_robust(config.robust, config.attackers)
        return cls(bounds_of(config), robust, scratch, config.exact_sums)


def bounds_of(config: RunConfig) -> Bounds:
    """How much one client may weigh in the run."""
    return Bounds(config.max_samples, config.samples_bound, config.norm_bound)


OPEN: Final[Defence] = Defence()
"""None: whoever is let in counts for what it says."""
