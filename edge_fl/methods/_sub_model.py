"""What FedDrop and AFD share: sub-models of units that the server chooses, recurrent layers whole."""

from typing import Literal

from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.server_half import Weighting
from edge_fl.methods.base import DropoutMethod, DropoutParameters, Job, LocalHalf, assigned_half, inverse_kept

__all__ = ["SubModelMethod", "SubModelParameters", "with_recurrent"]


class SubModelParameters(DropoutParameters, frozen=True, forbid_unknown_fields=True):
    """What FedDrop and AFD take, beside ``dropout``.

    Parameters
    ----------
    mode
        ``units`` leaves out the columns of dropped units, too; ``rows`` sends them.
    rule
        ``holders`` averages a unit over the clients that train it; ``mean`` counts it as unchanged at all others.
    weighting
        ``samples`` weighs a client by its samples, ``clients`` weighs all alike.
    scale
        Multiply kept activations by 1 / (1 - p) in training.
    """

    mode: Mode = "units"
    rule: Literal["holders", "mean"] = "holders"
    weighting: Weighting = "samples"
    scale: bool = True


class SubModelMethod(DropoutMethod):
    """A method whose server chooses S_b units of each block, and all units of recurrent ones."""

    parameters: SubModelParameters

    @property
    def rule(self) -> str:
        """``holders`` unless told otherwise."""
        return self.parameters.rule

    @property
    def weighting(self) -> Weighting:
        """By samples unless told otherwise."""
        return self.parameters.weighting

    @property
    def mode(self) -> Mode:
        """``units`` unless told otherwise."""
        return self.parameters.mode

    def counts(self, layout: Layout, tier: int) -> dict[str, int]:
        """S_b of each block at the tier's rate, J_b of a recurrent one."""
        return {**super().counts(layout, tier), **{name: layout.sizes[name] for name in layout.recurrent}}

    def local(self, job: Job) -> LocalHalf:
        """Train what was assigned; a step has one factor for all layers, so beside whole ones nothing is scaled."""
        scaled = self.parameters.scale and not job.layout.recurrent
        return assigned_half(job, scale=inverse_kept(self.dropout(job.tier)) if scaled else 1.0)


def with_recurrent(pattern: Pattern) -> Pattern:
    """``pattern``, and all units of recurrent blocks."""
    return pattern.filled(pattern.layout.recurrent) if pattern.layout.recurrent else pattern
