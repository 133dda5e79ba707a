"""What is recorded of a round: a line of metrics.jsonl."""

import msgspec

from edge_fl.metrics.text import loss_text, scores_text
from edge_fl.runs.privacy import Spent

__all__ = ["RoundMetrics", "TierScore"]


class TierScore(msgspec.Struct, frozen=True):
    """What the devices of a tier found of a model on the samples that they hold out.

    ``clients`` answered, who hold out ``samples``; ``loss`` and ``scores``, by name, are over all these. They
    evaluated the first units of each block, as many as ``width`` (thousandths) says.
    """

    clients: int
    samples: int
    loss: float
    scores: dict[str, float]
    width: int


class RoundMetrics(msgspec.Struct, frozen=True):
    """One line of metrics.jsonl. Bytes are frame bytes, up and down by client; ``downlink`` is all it was sent.

    ``scores``, by name, and ``loss`` are those on held-out data: none after a round that the model was not
    evaluated after.

    ``tiers`` and ``took`` say in which tier each client was asked, and how many seconds later its update was taken (or
    the round closed without it); ``stale`` says of updates that were trained from an older model than the round's, how
    many rounds older. ``on_devices`` are the scores of the devices that were asked for them, by tier. ``collected``
    says of the last round how many samples are behind the BatchNorm statistics of each width (thousandths), where those
    were collected after the round. ``clipped`` says which share of its change counted, by client, where a bound left
    out the rest, or all of it. ``averaged`` rows had too few holders for the robust rule. ``left_out`` is the share of
    the updates' entries that secure aggregation left out, as too few devices hold them. ``privacy`` is there in a
    private run, whose clients withhold their loss: ``train_loss`` is None then. Of a round that was broken off and gone
    on with, ``seconds``, ``took`` and ``downlink`` are those since.
    """

    round: int
    seconds: float
    loss: float | None
    train_loss: float | None
    uplink: dict[str, int]
    downlink: dict[str, int]
    excused: dict[str, str]
    rejections: dict[str, int]
    scores: dict[str, float] = {}
    tiers: dict[str, int] = {}
    took: dict[str, float] = {}
    stale: dict[str, int] = {}
    on_devices: dict[int, TierScore] = {}
    collected: dict[int, int] = {}
    clipped: dict[str, float] = {}
    averaged: int = 0
    left_out: float = 0.0
    privacy: Spent | None = None

    @property
    def found(self) -> str:
        """The scores for a person, or the training loss where there are none."""
        return scores_text(self.scores) or loss_text(None, self.train_loss) or "not scored"

    @property
    def first(self) -> float | None:
        """The first of the scores, which tables and plots show where there is room for one; None without any."""
        return next(iter(self.scores.values()), None)
