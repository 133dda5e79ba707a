"""The enrol listener: an MQTT broker in TLS for the holders of one-time tokens, and the authority that answers them.

A device logs in with a token's id and secret, and reaches that token's two topics alone. It sends a request with its
own key, and gets a certificate. The first key that comes with a token gets it, and no other: the folder's lock lets one
request be answered at a time.
"""

import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from broker.doors import OF_THE_HOUSE, Doors, Login
from broker.embedded import EmbeddedBroker
from broker.provision.authority import BROKER, Authority
from broker.provision.lock import locked_authority
from broker.provision.tokens import Kept, Tokens
from broker.turned_away import TurnedAway
from edge_fl.core.errors import ConfigError, EdgeFLError, FrameError, PortError, StateError
from edge_fl.identity.file import read_identity
from edge_fl.transport.access import Access
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Message
from edge_fl.wire.enrol import (
    LARGEST,
    Enrol,
    Enrolled,
    EnrolRefused,
    EnrolTopics,
    Why,
    decode_enrol,
    encode_enrol,
)

__all__ = ["EnrolDoors", "answer", "listen"]

_log = logging.getLogger(__name__)

_MOST_GUESSES, _GUESS_SECONDS = 10, 60.0  # wrong ones of one host
_MOST_HOSTS = 10_000
_SAYS_SECONDS = 10.0  # between two lines on who was turned away
_LINGER_SECONDS = 5.0  # a device whose answer was lost asks again


class _Guesses:
    """When each host guessed wrong."""

    def __init__(self) -> None:
        self._at: dict[str, tuple[float, ...]] = {}
        self._lock = threading.Lock()

    def too_many(self, host: str) -> bool:
        """Whether a host guessed wrong too often in the last minute."""
        return len(self._lately(host)) >= _MOST_GUESSES

    def add(self, host: str) -> None:
        """Count a wrong guess."""
        with self._lock:
            if host not in self._at and len(self._at) >= _MOST_HOSTS:
                self._at.clear()
            self._at[host] = (*self._lately(host), time.monotonic())[-_MOST_GUESSES:]

    def _lately(self, host: str) -> tuple[float, ...]:
        since = time.monotonic() - _GUESS_SECONDS
        return tuple(at for at in self._at.get(host, ()) if at > since)


@dataclass(frozen=True)
class EnrolDoors:
    """Doors of the enrol listener: TLS with the fleet's own certificate, and tokens.

    A host that guessed wrong ten times in a minute is not looked at before that minute is over.
    """

    folder: Path
    inside: Doors
    _guesses: _Guesses = field(default_factory=_Guesses)

    @classmethod
    def of(cls, folder: Path) -> "EnrolDoors":
        """Those of the fleet in ``folder``."""
        return cls(folder, Doors(cert=folder / f"{BROKER}.pem"))

    @property
    def cert(self) -> Path | None:
        """The listener's certificate and key."""
        return self.inside.cert

    @property
    def ca(self) -> Path | None:
        """No client shows a certificate here."""
        return None

    @property
    def asks(self) -> bool:
        """Whoever comes shows a token."""
        return True

    @property
    def wanted(self) -> str:
        """What a device comes with."""
        return "token that this listener knows"

    @property
    def one_session(self) -> bool:
        """Who has stolen a token must not end the session of the device; each knows its own answer."""
        return False

    def context(self) -> ssl.SSLContext | None:
        """How TLS is spoken."""
        return self.inside.context()

    def version(self) -> int:
        """There is no list of authorities that could change."""
        return 0

    def access(self) -> Access:
        """What lets the authority's own session in."""
        return replace(self.inside.access(), user=OF_THE_HOUSE, password=self.inside.key_of_the_house)

    def identity(self, login: Login) -> str | None:
        """The token's id, where the password is its secret."""
        if login.user == OF_THE_HOUSE:
            return self.inside.identity(login)
        host = login.host or "nowhere"
        if self._guesses.too_many(host):
            return None
        try:
            kept = Tokens(self.folder).find(login.user or "")
        except StateError as error:
            _log.warning("nobody can enrol: %s", error)
            return None
        if kept is None or not kept.opens_by(login.password):
            self._guesses.add(host)
            return None
        return kept.id


@contextmanager
def _listening(host: str, port: int, doors: EnrolDoors, topics: EnrolTopics) -> Iterator[EmbeddedBroker]:
    try:
        read_identity(doors.folder / f"{BROKER}.pem")
    except ConfigError as error:
        what = str(error).partition(": ")[0]
        raise StateError(f"{what}: restore it, or run `edge-fl provision rotate broker`.") from error
    try:
        opened = EmbeddedBroker(host=host, port=port, doors=doors, topics=topics, largest=2 * LARGEST)
    except PortError as error:
        raise PortError(f"{str(error).rstrip('.')}: end what listens there, as tokens name this port.") from error
    with opened as broker:
        yield broker


def listen(folder: Path, *, host: str, once: bool) -> None:
    """Let devices enrol until this process is ended.

    Parameters
    ----------
    host
        The interface to listen on; the port is the one that tokens name.
    once
        Whether to return when no token waits.

    Raises
    ------
    StateError
        When the folder holds no authority.
    ConfigError
        With ``once``, when no token waits at first.
    PortError, BrokerError
        When it cannot listen.
    """
    authority = Authority.open(folder)
    topics, doors = EnrolTopics(authority.fleet), EnrolDoors.of(folder)
    if once and not Tokens(folder).waiting:
        raise ConfigError("No token waits: make one with `edge-fl provision token NAME`.")
    with _listening(host, authority.enrol_port, doors, topics) as broker:
        connection = Connection(address=broker.address, client_id="authority", subscriptions=[topics.request("+")])
        connection.open(timeout=15.0)
        _log.info("devices enrol at %s", authority.enrol)
        if once:
            _log.info("waiting for %s", ", ".join(kept.name for kept in Tokens(folder).waiting))
        try:
            _serve(folder, connection, topics, broker.turned_away, once=once)
        finally:
            connection.close()


def _serve(
    folder: Path, connection: Connection, topics: EnrolTopics, turned_away: TurnedAway, *, once: bool
) -> None:
    until, said = None, -_SAYS_SECONDS
    while until is None or time.monotonic() < until:
        event = connection.next(1.0)
        if time.monotonic() - said > _SAYS_SECONDS and (found := turned_away.take()):
            said = time.monotonic()
            for times, reason in found.values():
                _log.warning("%d turned away, the last: %s", times, reason)
        if isinstance(event, Message):
            with suppress(FrameError):  # one bad message costs one message
                token = topics.token_of(event.topic)
                connection.publish(
                    topics.answer(token), encode_enrol(answer(folder, token, decode_enrol(event.payload)))
                )
            until = None
        elif once and until is None and not Tokens(folder).waiting:
            until = time.monotonic() + _LINGER_SECONDS


def answer(folder: Path, token: str, message: Enrol) -> Enrolled | EnrolRefused:
    """What the holder of a token gets for its request; a token gives one certificate."""
    digest = hashlib.sha256(message.request).digest()
    try:
        with locked_authority(folder) as authority:
            tokens = Tokens(folder)
            kept, key = tokens.find(token), _key_of(message.request)
            if kept is None:  # it was replaced meanwhile
                return EnrolRefused(digest, "expired")
            certificate = kept.certificate
            if why := _refusal(authority, kept, key):
                return EnrolRefused(digest, why)
            if key is not None and not certificate:
                certificate = authority.certify(kept.name, key)
                tokens.spend(token, certificate)  # first: a listener killed here finds it, and remembers it then
                _log.info("%s has enrolled", kept.name)
            authority.remember(kept.name, certificate)
            return Enrolled(digest, certificate, authority.coordinator, authority.broker)
    except EdgeFLError as error:
        _log.warning("a device cannot enrol: %s", error)
        return EnrolRefused(digest, "unavailable")


def _refusal(authority: Authority, kept: Kept, key: Ed25519PublicKey | None) -> Why | None:
    """Why a request is refused; None where it gets a certificate, or again the one that it got."""
    if key is None:
        return "request"
    if kept.certificate:
        if not kept.gave(key):
            return "used"
        if authority.remembers(kept.certificate):  # an answer may be lost
            return None
    if kept.expired:
        return "expired"
    try:
        authority.check_free(kept.name)
    except ConfigError:
        return "taken"
    return None


def _key_of(request: bytes) -> Ed25519PublicKey | None:
    """The key that signed a request; what else the request says counts for nothing."""
    try:
        found = x509.load_der_x509_csr(request)
        key = found.public_key()
        return key if isinstance(key, Ed25519PublicKey) and found.is_signature_valid else None
    except (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm):
        return None
