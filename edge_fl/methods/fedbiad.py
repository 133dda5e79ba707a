"""FedBIAD (Xue et al., 2023), Algorithm 1: Bayesian inference-based adaptive dropout of weight rows.

Drops rows of every matrix but the output layer's, with their biases. In ``rows`` mode, the paper's, a kept row
travels whole: the FMNIST MLP 784-256-256-10 at p = 0.5 sends 128*784 + 128*256 + 10*256 weights, the 530 KB of
Table I, and the biases of what is kept. In ``units`` mode the columns of dropped units stay home too.

Where the paper can be read in two ways, both are parameters:

- Eq. (10) as printed counts dropped rows as zeros (rule ``zeros``) and shrinks every weight by p a round. The
  default is ``holders``: each row is averaged over the clients that hold it.
- Kept activations are scaled by 1/(1-p) in local training (``scale``), as dropout is; the paper does not say.
- Line 26 of Algorithm 1 stands outside the stage-one condition, so that scores would grow in stage two as well;
  they are frozen there, as a pattern that is never redrawn would only confirm itself.
- An iteration is a pass over a client's data: the paper's loss is over all of it, and its m_r counts r V min|D_k|
  samples. Of 60 samples in batches of 20 three passes are nine steps. Eq. (8) takes 2 tau of them: a client whose round
  is no longer than that keeps its pattern for the round. With ``tau_in = "steps"`` an iteration is one mini-batch.
- Eq. (8) compares the last tau losses with the tau before. After a redraw these are the old pattern's, and a fresh
  pattern, whose rows know nothing yet, is judged by them: it is redrawn again, and again. With ``own_losses`` a pattern
  is looked at once it has 2 tau losses of its own.
- Line 26 of Algorithm 1 updates the scores every iteration (``score_every = "step"``); the text of section IV-D
  can also be read as once every tau iterations (``"tau"``).
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream, stream_key
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import State, Weighting
from edge_fl.methods.base import DropoutMethod, DropoutParameters, Job, LocalHalf, LocalStep, inverse_kept

__all__ = ["METHOD", "FedBiad", "FedBiadParameters"]


class FedBiadParameters(DropoutParameters, frozen=True, forbid_unknown_fields=True):
    """What FedBIAD takes beside ``dropout``.

    Parameters
    ----------
    stage_boundary
        The last round R_b of stage one; 0: there is none.
    tau
        Passes, or steps, between two looks at the loss (eq. (8)).
    tau_in
        ``passes`` over the client's data, or ``steps`` of one mini-batch.
    own_losses
        Look at a redrawn pattern once it has 2 tau losses of its own.
    mode
        ``rows`` sends kept rows whole; ``units`` leaves out the columns of dropped units, too.
    rule
        ``holders`` averages a row over the clients that hold it; ``zeros`` counts it as zero at all others, as eq. (10)
        is printed; ``mean`` as unchanged.
    weighting
        ``samples`` weighs a client by its samples, ``clients`` weighs all alike.
    scale
        Multiply kept activations by 1 / (1 - p) in training.
    variance
        The variance s2 of the noise on weights. Eq. (13) gives 1e-30 after a round of Table I on Fashion-MNIST, which
        float32 cannot tell from 0.
    score_every
        Update the scores each ``step``, as line 26 of Algorithm 1, or each ``tau``.
    """

    stage_boundary: int = 55
    tau: int = 3
    tau_in: Literal["passes", "steps"] = "passes"
    own_losses: bool = False
    mode: Mode = "rows"
    rule: Literal["holders", "zeros", "mean"] = "holders"
    weighting: Weighting = "samples"
    scale: bool = True
    variance: float = 0.0
    score_every: Literal["step", "tau"] = "step"

    def __post_init__(self) -> None:
        DropoutParameters.__post_init__(self)
        if self.stage_boundary < 0:
            raise ConfigError("FedBIAD's stage one ends with a round from 0 on (0: there is none).")
        if self.tau < 1 or not 0 <= self.variance < float("inf"):
            raise ConfigError("FedBIAD's tau must be at least 1 and its variance at least 0.")

    def tau_steps(self, job: Job) -> int:
        """Tau in local steps of ``job``: a pass over its samples takes some."""
        return self.tau * (-(-job.samples // job.batch) if self.tau_in == "passes" else 1)


class _Local(LocalHalf):
    """ClientUpdate of Algorithm 1 (lines 9 to 28), without the gradient step."""

    def __init__(self, job: Job, parameters: FedBiadParameters, dropout: int) -> None:
        self._job, self._parameters = job, parameters
        self._dropout = dropout
        self._scores = np.array(job.state.get("scores", np.zeros(job.layout.units)), dtype=np.float64)
        self._tau = parameters.tau_steps(job)
        self._losses: list[float] = []
        self._unscored_steps = 0  # for which the rows of the pattern have yet to score
        self._draws = 0
        self._drawn_after = -1  # the last step of the pattern before
        self._exploring = job.round <= parameters.stage_boundary
        pattern = self._draw() if self._exploring else self._best()
        super().__init__(LocalStep(pattern, inverse_kept(dropout) if parameters.scale else 1.0))

    def _draw(self) -> Pattern:
        """A pattern from Z_N^S (lines 11 and 21)."""
        key = stream_key(
            seed=self._job.seed,
            purpose="fedbiad-pattern",
            client=self._job.client,
            round=self._job.round,
            index=self._draws,
        )
        self._draws += 1
        return Pattern.seeded(self._job.layout, self._dropout, key)

    def _best(self) -> Pattern:
        """The highest-scored rows (line 13): exactly S_b a block, where the p-quantile alone can keep too few."""
        ties = Stream.of(
            seed=self._job.seed, purpose="fedbiad-ties", client=self._job.client, round=self._job.round
        )
        return Pattern.highest(self._job.layout, self._dropout, self._scores, ties)

    def extra(self, selection: Selection, number: int) -> dict[str, NDArray[np.float32]]:
        """Lines 16 and 17: the gradient at theta ~ N(U, s2 I) moves U; ``noise.NAME`` is theta - U of what is kept."""
        if not self._parameters.variance:
            return {}
        job = self._job
        stream = Stream.of(seed=job.seed, purpose="weights", client=job.client, round=job.round, index=number)
        spread, noise = np.sqrt(self._parameters.variance), {}
        for tensor in selection.layout.tensors:
            shape = selection.shape(tensor)
            drawn = spread * stream.normal(int(np.prod(shape)))
            noise[f"noise.{tensor.name}"] = drawn.astype(np.float32).reshape(shape)
        return noise

    def after_step(self, number: int, loss: float) -> None:
        """Lines 18 to 26: every tau steps keep or redraw the pattern; score the rows held."""
        self._losses.append(loss)
        if not self._exploring:
            return
        tau, held = self._tau, self.step.pattern
        looking = number > tau and number % tau == 0
        if self._parameters.own_losses:
            looking = looking and number - self._drawn_after >= 2 * tau
        redrawn = looking and self._gap() > 0
        if redrawn:
            self._settle()
            self.step = replace(self.step, pattern=self._draw())
            self._drawn_after = number
        if looking or self._parameters.score_every == "step":
            # Eq. (9): a held row scores, unless the loss rose and the redraw leaves it behind.
            if redrawn:
                self._scores += held.mask & self.step.pattern.mask
            else:
                self._unscored_steps += 1

    def _settle(self) -> None:
        """Let the rows held score for all steps since the pattern was drawn, or they last scored."""
        self._scores += self._unscored_steps * self.step.pattern.mask
        self._unscored_steps = 0

    def _gap(self) -> float:
        """Eq. (8): mean loss of the last tau steps minus that of the tau before."""
        tau = self._tau
        return sum(self._losses[-tau:]) / tau - sum(self._losses[-2 * tau : -tau]) / tau

    def state(self) -> State:
        """The scores E (``[J]`` float64), which survive rounds and restarts."""
        self._settle()
        return {"scores": self._scores}


class FedBiad(DropoutMethod):
    """Rows are dropped by each client, redrawn while its loss rises, and at last chosen by experience."""

    name = "fedbiad"
    Parameters = FedBiadParameters
    parameters: FedBiadParameters

    @property
    def variant(self) -> str:
        """The step that samples weights, where there is a variance to sample with."""
        return "noise" if self.parameters.variance else "plain"

    @property
    def rule(self) -> str:
        """``holders`` unless told otherwise; ``zeros`` is eq. (10) to the letter."""
        return self.parameters.rule

    @property
    def weighting(self) -> Weighting:
        """By samples unless told otherwise."""
        return self.parameters.weighting

    @property
    def mode(self) -> Mode:
        """``rows`` as in the paper unless told otherwise."""
        return self.parameters.mode

    def local(self, job: Job) -> LocalHalf:
        """Start Algorithm 1's ClientUpdate."""
        return _Local(job, self.parameters, self.dropout(job.tier))


METHOD = FedBiad
