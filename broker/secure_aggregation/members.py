"""What each device of a round counts, and what is learned of it, where its update is not seen."""

from collections.abc import Mapping
from dataclasses import dataclass

from edge_fl.aggregation.bounds import Bounds
from edge_fl.aggregation.rules import Rule
from edge_fl.core.pattern import Pattern
from edge_fl.methods.capabilities import ClientReport
from edge_fl.secure_aggregation.roster import Member
from edge_fl.wire.frame import Frame
from edge_fl.wire.masks import encode_mask
from edge_fl.wire.messages import Keys

__all__ = ["Announced", "counted", "member_of"]


@dataclass(frozen=True)
class Announced:
    """What a client's update says beside its values, and in how many ``seconds`` it came.

    ``samples`` are its own, and ``counted`` as many of them as bounds let count.
    """

    client: str
    tier: int
    samples: int
    counted: int
    loss: float
    pattern: Pattern
    seconds: float | None = None

    @classmethod
    def of(cls, frame: Frame, *, tier: int, counted: int, seconds: float | None) -> "Announced":
        """As ``frame`` says it."""
        header = frame.header
        return cls(header.client, tier, header.samples, counted, header.loss, frame.pattern, seconds)

    @property
    def report(self) -> ClientReport:
        """What the server half learns of it."""
        return ClientReport(self.client, self.tier, self.counted, self.loss, self.pattern, None, self.seconds)


def counted(samples: Mapping[str, int], bounds: Bounds) -> dict[str, int]:
    """How many of their ``samples`` clients count for, beside each other."""
    most = bounds.most_samples(list(samples.values()))
    return {client: max(1, int(min(own, most))) for client, own in samples.items()}


def member_of(announced: Announced, rule: Rule, keys: Keys | None = None) -> Member:
    """A client as a roster has it; without ``keys`` where nothing is masked."""
    mask, pattern = encode_mask(announced.pattern)
    none = bytes(32)
    return Member(
        client=announced.client,
        weight=rule.weight(announced.counted),
        samples=announced.samples,
        mask=mask,
        pattern=pattern,
        encryption=none if keys is None else keys.encryption,
        masking=none if keys is None else keys.masking,
        commitment=none if keys is None else keys.commitment,
        signature=b"" if keys is None else keys.signature,
        certificate=b"" if keys is None else keys.certificate,
    )
