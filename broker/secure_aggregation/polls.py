"""What a cohort is asked in an attempt at its sum: keys, shares of secrets, masked updates, and shares that unmask."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker.poll import Poll
from broker.run_folder import RunFolder
from broker.secure_aggregation.masked_uploads import MaskedUploads
from edge_fl.core.errors import FrameError
from edge_fl.secure_aggregation.keys import SEALED, KeyPair
from edge_fl.secure_aggregation.masking import Ring, add_vector, zeros
from edge_fl.secure_aggregation.roster import Cohort, entries
from edge_fl.wire.messages import (
    Answer,
    Keys,
    MakeKeys,
    Offer,
    Register,
    SendMasked,
    ShareKeys,
    Shares,
    ToDevice,
    Unmask,
    Unmasked,
)

__all__ = ["KeysPoll", "MaskedPoll", "SharesPoll", "UnmaskPoll"]

_A = TypeVar("_A", Keys, Shares, Offer, Unmasked)
_R = TypeVar("_R", MakeKeys, ShareKeys, SendMasked, Unmask)


@dataclass
class _AttemptPoll(Poll[_R, _A], Generic[_R, _A]):
    """What is asked in one ``attempt``: answers of another come late."""

    statuses = ("", "")
    attempt: int = field(kw_only=True)

    def take(self, client: str, answer: Answer | Offer, profile: Register) -> bool:
        """As :meth:`broker.poll.Poll.take`."""
        if isinstance(answer, self.kind) and answer.attempt != self.attempt:
            raise FrameError("late", f"Attempt {answer.attempt} at round {answer.round} is over.")
        return super().take(client, answer, profile)


@dataclass
class KeysPoll(_AttemptPoll[MakeKeys, Keys]):
    """Asks for fresh keys; ``signed`` raises FrameError where the client did not sign what it says."""

    kind = Keys
    statuses = ("aggregating", "")
    signed: Callable[[str, Keys], None] = field(default=lambda _client, _keys: None, kw_only=True)

    def check(self, client: str, answer: Keys, profile: Register) -> None:
        """A key that others refuse would cost its owner's whole cohort."""
        del profile
        for key in (answer.encryption, answer.masking):
            KeyPair.fresh().agree(key)
        self.signed(client, answer)


@dataclass
class SharesPoll(_AttemptPoll[ShareKeys, Shares]):
    """Asks each member of a cohort for shares for all others."""

    kind = Shares
    cohorts: Mapping[str, Cohort] = field(kw_only=True)

    def check(self, client: str, answer: Shares, profile: Register) -> None:
        """One for each other member, of the size that shares have."""
        del profile
        others = self.cohorts[client].members.keys() - {client}
        if answer.sealed.keys() != others or any(len(sealed) != SEALED for sealed in answer.sealed.values()):
            raise FrameError("share", f"'{client}' sealed shares for others than its cohort.")


@dataclass
class MaskedPoll(_AttemptPoll[SendMasked, Offer]):
    """Asks for masked updates. Each is added to its cohort's sum, in whatever order they come, and not kept.

    ``sums`` are those of each cohort, by the place that it has in ``places``.
    """

    kind = Offer
    cohorts: Mapping[str, Cohort] = field(kw_only=True)
    places: Mapping[str, int] = field(kw_only=True)
    sums: dict[int, Ring] = field(default_factory=dict)

    def content_in(self, client: str) -> int:
        """Bytes of the other members' sealed shares."""
        return sum(map(len, self.tasks[client].sealed.values()))

    def open_incoming(self, folder: RunFolder, send: Callable[[str, ToDevice], None]) -> MaskedUploads:
        """Masked updates come in chunks."""
        return MaskedUploads(self, folder.open_masked(self.number), send)

    def size(self, client: str) -> int:
        """Bytes of a client's masked update."""
        return 4 * entries(self.cohorts[client].selection(client))

    def check(self, client: str, answer: Offer, profile: Register) -> None:
        """It has the size that it must have; what it has is looked at by :meth:`add`."""
        del profile
        if answer.update.size != self.size(client):
            raise FrameError("values", f"'{client}' offers {answer.update.size} bytes, not {self.size(client)}.")

    def add(self, client: str, content: bytes) -> None:
        """Add a masked update, once; raises FrameError (``values``) when it has another size than the client's."""
        cohort, place = self.cohorts[client], self.places[client]
        add_vector(self.sums.setdefault(place, zeros(cohort.layout)), cohort.selection(client), content)


@dataclass
class UnmaskPoll(_AttemptPoll[Unmask, Unmasked]):
    """Asks the survivors for the shares that unmask their sum; ``sharing`` are the members that each had shares of."""

    kind = Unmasked
    statuses = ("", "aggregated")
    sharing: Mapping[str, frozenset[str]] = field(kw_only=True)

    def check(self, client: str, answer: Unmasked, profile: Register) -> None:
        """No shares of strangers."""
        del profile
        if not answer.shares.keys() <= self.sharing[client]:
            raise FrameError("share", f"'{client}' gives shares of clients that are not of its cohort.")
