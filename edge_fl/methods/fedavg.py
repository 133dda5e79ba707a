"""FedAvg (McMahan et al., 2017): nothing dropped, sample-weighted mean. Drops no tensor; a frame is dense."""

import msgspec

from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.server_half import Weighting
from edge_fl.methods.base import Job, LocalHalf, LocalStep, Method
from edge_fl.methods.capabilities import DrawsWithoutData

__all__ = ["METHOD", "FedAvg", "FedAvgParameters"]


class FedAvgParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What FedAvg takes.

    Parameters
    ----------
    weighting
        ``samples`` weighs a client by its samples, ``clients`` weighs all alike.
    """

    weighting: Weighting = "samples"


class FedAvg(Method, DrawsWithoutData):
    """Every client trains and uploads the whole model."""

    name = "fedavg"
    Parameters = FedAvgParameters
    parameters: FedAvgParameters
    rule = "mean"
    mode: Mode = "rows"  # without a dropped row both modes are one

    @property
    def weighting(self) -> Weighting:
        """By samples unless told otherwise."""
        return self.parameters.weighting

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """Every unit, whatever the tier."""
        del tier
        return dict(layout.sizes)

    def local(self, job: Job) -> LocalHalf:
        """Train everything."""
        return LocalHalf(LocalStep(Pattern.full(job.layout)))


METHOD = FedAvg
