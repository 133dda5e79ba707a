"""One federated evaluation: which devices were asked for a score, and what they answered. No network, no clock."""

from dataclasses import dataclass, field

from broker.acceptance import check_score
from broker.run_folder import TierScore
from edge_fl.errors import FrameError
from edge_fl.wire.messages import Evaluate, Evaluated

__all__ = ["ScoreRound"]


@dataclass
class ScoreRound:
    """The scores of the model after round ``number``.

    ``tasks`` are what each client was asked, ``tiers`` in which tier, ``answers`` what was taken, and ``excused`` the
    clients that are not waited for. ``sent_at`` is when each was last sent its task, in the caller's monotonic seconds.
    Once it is ``closed`` nobody is waited for, and answers come late.
    """

    number: int
    tasks: dict[str, Evaluate] = field(default_factory=dict)
    tiers: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Evaluated] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    sent_at: dict[str, float] = field(default_factory=dict)
    closed: bool = False

    def awaits(self, client: str) -> bool:
        """Whether this client is still to be heard of."""
        return client in self.tasks and not (self.closed or client in self.answers or client in self.excused)

    def outstanding(self) -> set[str]:
        """The clients still to be heard of."""
        return {client for client in self.tasks if self.awaits(client)}

    def overdue(self, since: float) -> list[str]:
        """Those of them that were last sent their task before ``since``."""
        return sorted(client for client in self.outstanding() if self.sent_at[client] < since)

    def take(self, client: str, answer: Evaluated, held_out: int) -> bool:
        """Count the answer of a client that registered ``held_out`` samples to evaluate on.

        Returns
        -------
        False where this very answer was taken before: it was thought lost.

        Raises
        ------
        FrameError
            As :func:`broker.acceptance.check_score`, after which the client is waited for no longer; ``late``,
            ``not-selected`` or ``duplicate`` where an answer has no place.
        """
        if self.answers.get(client) == answer:
            return False
        if self.closed or answer.round != self.number:
            raise FrameError("late", f"Nobody waits for a score of the model after round {answer.round}.")
        if client not in self.tasks:
            raise FrameError("not-selected", f"The client was not asked for a score after round {self.number}.")
        if client in self.answers:
            raise FrameError("duplicate", "Another score of this model was taken already.")
        try:
            check_score(answer, held_out)
        except FrameError:
            self.excused.add(client)
            raise
        self.answers[client] = answer
        return True

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
