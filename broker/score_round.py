"""One federated evaluation: the scores that devices were asked for, and what they come to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from broker.acceptance import check_score
from broker.poll import Poll
from edge_fl.aggregation.bounds import Bounds
from edge_fl.core.bundle import Manifest
from edge_fl.metrics.base import Metric, Sums
from edge_fl.runs.metrics import TierScore
from edge_fl.wire.messages import Evaluate, Evaluated, Register

__all__ = ["ScoreRound"]


@dataclass
class ScoreRound(Poll[Evaluate, Evaluated]):
    """The scores of the model after a round."""

    metrics: Sequence[Metric] = ()
    manifest: Manifest | None = None
    bounds: Bounds = field(default_factory=Bounds)

    kind = Evaluated
    statuses = ("evaluating", "evaluated")

    def check(self, client: str, answer: Evaluated, profile: Register) -> None:
        """As :func:`broker.acceptance.check_score`."""
        del client
        assert self.manifest is not None
        check_score(answer, profile.test_samples, self.metrics, self.manifest)

    def by_tier(self) -> dict[int, TierScore]:
        """What the answers come to in each tier that has any: made of their sums, added in the order of ids.

        A client counts for no more samples than ``bounds`` let it, beside all that answered.
        """
        found, most = {}, self.bounds.most_samples([answer.samples for answer in self.answers.values()])
        for tier in sorted({self.tiers[client] for client in self.answers}):
            clients = [client for client in sorted(self.answers) if self.tiers[client] == tier]
            answers = [_bounded(self.answers[client], most) for client in clients]
            samples = sum(answer.samples for answer in answers)
            found[tier] = TierScore(
                clients=len(answers),
                samples=samples,
                loss=sum(answer.samples * answer.loss for answer in answers) / samples,
                scores={m.name: m.value(_added(m.name, answers)) for m in self.metrics},
                width=self.tasks[clients[0]].width,
            )
        return found


def _bounded(answer: Evaluated, most: float) -> Evaluated:
    """The answer as of ``most`` samples, where it is of more."""
    if answer.samples <= most:
        return answer
    share = int(most) / answer.samples
    sums = {name: tuple(share * value for value in values) for name, values in answer.sums.items()}
    return msgspec.structs.replace(answer, samples=int(most), sums=sums)


def _added(name: str, answers: Sequence[Evaluated]) -> Sums:
    """The sums of one metric over all answers, in their order."""
    total = np.array(answers[0].sums[name], dtype=np.float64)
    for answer in answers[1:]:
        total += answer.sums[name]
    return total
