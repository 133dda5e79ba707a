"""One device's part in the secure aggregation of a round (Bonawitz et al. 2017, row by row)."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.selection import Selection
from edge_fl.secure_aggregation.keys import KEY, KeyPair, Session, commitment_of, open_sealed, seal
from edge_fl.secure_aggregation.masking import add_pair, add_seed, add_update, vector_of, zeros
from edge_fl.secure_aggregation.roster import Cohort, Member, decode_roster
from edge_fl.secure_aggregation.shamir import split
from edge_fl.secure_aggregation.statement import PublicKeys, Said, statement_of
from edge_fl.wire.frame import Frame
from edge_fl.wire.messages import Keys, Shares, Unmasked
from edge_fl.wire.values import values_size

__all__ = ["Participant", "Signatory"]

_log = logging.getLogger(__name__)


class Signatory(Protocol):
    """Signs for a device, and checks what other devices signed."""

    certificate: bytes

    def sign(self, data: bytes) -> bytes:
        """The device's signature of ``data``."""

    def check(self, client: str, certificate: bytes, signature: bytes, data: bytes) -> None:
        """Raises FrameError where ``client`` did not sign ``data``, or its certificate does not hold."""


@dataclass(frozen=True)
class _Secrets:
    """What a device makes anew for each attempt."""

    session: Session
    encryption: KeyPair
    masking: KeyPair
    seed: bytes

    @property
    def public(self) -> PublicKeys:
        """What others learn of them."""
        return PublicKeys(self.encryption.public, self.masking.public, commitment_of(self.seed))


class Participant:
    """Adds one update to its cohort's sum, and shows it to nobody.

    For each attempt it makes fresh keys. Once it knows its cohort, it seals shares of its two secrets for the others.
    Then it sends its update under masks: one of its own, and one with each member that shared. At last it gives the
    shares that unmask the sum of those who sent theirs. It does that once, for one set of members, and only if enough
    of them hold each row.

    Parameters
    ----------
    update
        The frame that was announced, which withholds its values.
    values
        These, as :attr:`edge_fl.training.update.Update.withheld`.
    layout
        The model's.
    signatory
        Signs keys, and checks those of other members; None without identities.
    holders
        How many members must hold each row at least, whatever the roster says.

    Raises
    ------
    FrameError
        ``values`` when they are not those of the update.
    """

    def __init__(
        self, update: Frame, values: bytes, layout: Layout, signatory: Signatory | None = None, *, holders: int = 2
    ) -> None:
        if len(values) != values_size(update.selection):
            raise FrameError("values", "The values are those of another update.")
        self._update, self._layout, self._signatory = update, layout, signatory
        self._values, self._holders = _split(values, update.selection), holders
        self._secrets: _Secrets | None = None
        self._cohort: Cohort | None = None
        self._shares: tuple[bytes, Shares] | None = None  # of the attempt, and the roster that they are for
        self._there: tuple[str, ...] | None = None  # the others that shared
        self._received: dict[str, bytes] = {}  # two shares of each member that shared, by its id
        self._unmasked: tuple[Session, frozenset[str]] | None = None

    @property
    def run(self) -> str:
        """Of the update."""
        return self._update.header.run

    @property
    def round(self) -> int:
        """Of the update."""
        return self._update.header.round

    @property
    def _own(self) -> str:
        return self._update.header.client

    def keys(self, attempt: int) -> Keys:
        """Begin an attempt; raises FrameError (``stale``) on one that is over, or after the sum was unmasked."""
        session = Session(self.run, self.round, attempt)
        if self._unmasked is not None or (self._secrets is not None and attempt < self._secrets.session.attempt):
            raise FrameError("stale", f"Attempt {attempt} is over.")
        if self._secrets is None or self._secrets.session != session:
            self._secrets = _Secrets(session, KeyPair.fresh(), KeyPair.fresh(), KeyPair.fresh().private)
            self._cohort = self._shares = self._there = None
            self._received = {}
        made = self._secrets
        public = made.public
        if self._signatory is None:
            return Keys(self.run, self.round, attempt, *public)
        header = self._update.header
        announced = Said.of(self._update.pattern, header.samples)
        signature = self._signatory.sign(statement_of(session, header.client, announced, public))
        return Keys(self.run, self.round, attempt, *public, signature, self._signatory.certificate)

    def shares(self, attempt: int, roster: bytes) -> Shares:
        """Shares of both secrets for each other member of the cohort.

        Raises FrameError (``roster``, ``mask``, ``key``, ``signature``, ``stale``) when the roster is not to be
        trusted.
        """
        made = self._of(attempt)
        if self._shares is not None:
            return self._shared_before(roster)
        cohort = decode_roster(roster, self._layout)
        self._check(cohort, made)
        members, count = cohort.members, len(cohort.members)
        threshold = cohort.roster.threshold
        both = zip(split(made.masking.private, count, threshold), split(made.seed, count, threshold), strict=True)
        each = dict(zip(members, (key + seed for key, seed in both), strict=True))
        self._cohort, self._received = cohort, {self._own: each[self._own]}
        sealed = {
            client: seal(
                made.encryption,
                member.encryption,
                made.session,
                sender=self._own,
                receiver=client,
                secret=each[client],
            )
            for client, member in members.items()
            if client != self._own
        }
        self._shares = roster, Shares(self.run, self.round, attempt, sealed)
        return self._shares[1]

    def _shared_before(self, roster: bytes) -> Shares:
        """Secrets are shared once: shares for two rosters might together give them to too few."""
        assert self._shares is not None
        if self._shares[0] != roster:
            raise FrameError("roster", "The roster is another one than before in this attempt.")
        return self._shares[1]

    def masked(self, attempt: int, sealed: Mapping[str, bytes]) -> bytes:
        """The update under masks with the members whose ``sealed`` shares these are: uint32 of what it keeps.

        Entries that too few of these members hold are left out.

        Raises
        ------
        FrameError
            ``stale`` when there is no such attempt, ``roster`` when the shares are of strangers, of fewer members than
            can unmask, or of others than before.
        """
        made, cohort = self._of(attempt), self._known(attempt)
        others = tuple(sorted(sealed))
        if self._there not in (None, others):
            raise FrameError("roster", "Other members share than before in this attempt.")
        if not set(others) <= set(cohort.members) - {self._own} or len(others) + 1 < cohort.roster.threshold:
            raise FrameError("roster", "Too few members of the cohort share, or strangers do.")
        self._there = others
        for client in others:
            self._open(made, cohort, client, sealed[client])
        total = zeros(self._layout)
        add_update(total, cohort, self._own, self._values, (self._own, *others))
        add_seed(total, cohort, self._own, made.seed, 1)
        for client in others:
            add_pair(total, cohort, (self._own, client), made.masking, 1)
        return vector_of(total, cohort.selection(self._own))

    def unmask(self, attempt: int, survivors: Collection[str]) -> Unmasked:
        """A share of the seed of each of the ``survivors``, and of the masking key of every other member that shared.

        Raises
        ------
        FrameError
            ``stale`` when there is no such attempt, ``unmasked`` when other shares were given in this round,
            ``roster`` when survivors are too few or strangers, ``thin`` when too few of them hold a row.
        """
        made, cohort, there = self._of(attempt), self._known(attempt), frozenset(survivors)
        if self._unmasked not in (None, (made.session, there)):
            raise FrameError("unmasked", "The device unmasked another sum of this round.")
        sharing = {self._own, *(self._there or ())}
        if self._there is None or not there <= sharing or len(there) < cohort.roster.threshold:
            raise FrameError("roster", "Too few members survive, or strangers do.")
        for tensor in self._layout.tensors:
            thin = cohort.thin(tensor, sorted(there)) & ~cohort.thin(tensor, sorted(sharing))
            if thin.any():
                raise FrameError(
                    "thin",
                    f"Fewer than {cohort.roster.holders} members hold some rows of '{tensor.name}': they may not be "
                    "unmasked.",
                )
        self._unmasked = made.session, there
        shares = {client: held[KEY:] if client in there else held[:KEY] for client, held in self._received.items()}
        return Unmasked(self.run, self.round, attempt, shares)

    def _of(self, attempt: int) -> _Secrets:
        if self._secrets is None or self._secrets.session.attempt != attempt:
            raise FrameError("stale", f"This device knows nothing of attempt {attempt}.")
        return self._secrets

    def _known(self, attempt: int) -> Cohort:
        if self._cohort is None:
            raise FrameError("stale", f"This device knows no cohort in attempt {attempt}.")
        return self._cohort

    def _check(self, cohort: Cohort, made: _Secrets) -> None:
        own, header = cohort.members.get(self._own), self._update.header
        if cohort.roster.session != made.session or own is None or cohort.roster.mode != header.mode:
            raise FrameError("roster", "The roster is of another round, or leaves this device out.")
        if own.keys != made.public or own.samples != header.samples:
            raise FrameError("roster", "The roster gives this device other keys or samples than its own.")
        if cohort.patterns[self._own] != self._update.pattern:
            raise FrameError("roster", "The roster gives this device another pattern than its own.")
        if cohort.roster.holders < self._holders:
            raise FrameError(
                "roster",
                f"The sum is of rows that {cohort.roster.holders} devices hold, and this device requires "
                f"{self._holders}.",
            )
        if self._signatory is not None:
            for member in cohort.roster.members:
                _check_signature(self._signatory, cohort, member)

    def _open(self, made: _Secrets, cohort: Cohort, sender: str, sealed: bytes) -> None:
        """Keep a member's shares. Whoever seals none that can be opened is masked with all the same: others may have
        enough.
        """
        try:
            opened = open_sealed(
                made.encryption,
                cohort.members[sender].encryption,
                made.session,
                sender=sender,
                receiver=self._own,
                sealed=sealed,
            )
        except FrameError as error:
            _log.warning("%s", error)
            return
        if len(opened) == 2 * KEY:
            self._received[sender] = opened


def _check_signature(signatory: Signatory, cohort: Cohort, member: Member) -> None:
    announced = Said.of(cohort.patterns[member.client], member.samples)
    said = statement_of(cohort.roster.session, member.client, announced, member.keys)
    signatory.check(member.client, member.certificate, member.signature, said)


def _split(values: bytes, selection: Selection) -> dict[str, NDArray[np.float32]]:
    flat, start, found = np.frombuffer(values, dtype="<f4"), 0, {}
    for tensor in selection.layout.tensors:
        shape = selection.shape(tensor)
        size = int(np.prod(shape, dtype=np.int64))
        found[tensor.name] = flat[start : start + size].reshape(shape)
        start += size
    return found
