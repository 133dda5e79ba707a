"""One federated evaluation: the scores that devices were asked for, and what they come to."""

from dataclasses import dataclass

from broker.acceptance import check_score
from broker.poll import Poll
from edge_fl.runs.metrics import TierScore
from edge_fl.wire.messages import Evaluated, Register

__all__ = ["ScoreRound"]


@dataclass
class ScoreRound(Poll[Evaluated]):
    """The scores of the model after a round."""

    kind = Evaluated
    statuses = ("evaluating", "evaluated")

    def check(self, client: str, answer: Evaluated, profile: Register) -> None:
        """As :func:`broker.acceptance.check_score`."""
        del client
        check_score(answer, profile.test_samples)

    def by_tier(self) -> dict[int, TierScore]:
        """What the answers come to in each tier that has any: means over its samples, summed in the order of ids."""
        found = {}
        for tier in sorted({self.tiers[client] for client in self.answers}):
            clients = [client for client in sorted(self.answers) if self.tiers[client] == tier]
            answers = [self.answers[client] for client in clients]
            samples = sum(answer.samples for answer in answers)
            found[tier] = TierScore(
                clients=len(answers),
                samples=samples,
                loss=sum(answer.samples * answer.loss for answer in answers) / samples,
                accuracy=sum(answer.samples * answer.accuracy for answer in answers) / samples,
                width=self.tasks[clients[0]].width,
            )
        return found
