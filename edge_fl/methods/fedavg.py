"""FedAvg (McMahan et al., 2017): nothing dropped, sample-weighted mean. Drops no tensor; a frame is dense."""

import msgspec

from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.methods.base import Job, LocalHalf, Method

__all__ = ["METHOD", "FedAvg"]


class _Local(LocalHalf):
    def __init__(self, job: Job) -> None:
        self.pattern = Pattern.full(job.layout)


class FedAvg(Method):
    """Every client trains and uploads the whole model."""

    name = "fedavg"

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """FedAvg has none."""

    @property
    def rule(self) -> str:
        """The sample-weighted mean."""
        return "mean"

    @property
    def mode(self) -> Mode:
        """Without a dropped row both modes are one."""
        return "rows"

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """Every unit, whatever the tier."""
        del tier
        return dict(layout.sizes)

    def local(self, job: Job) -> LocalHalf:
        """Train everything."""
        return _Local(job)


METHOD = FedAvg
