"""How a device's messages travel: bare, or signed by its identity and by the coordinator that the identity names."""

import logging
from pathlib import Path
from typing import Protocol

import msgspec

from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import FrameError, StateError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.identity.file import device_identity
from edge_fl.identity.signing import Newest, Signer, SigningKey, check_signature, newest_key, now_ms
from edge_fl.wire.messages import FromDevice, Gone, Register, ToDevice, decode_to_device, encode_message
from edge_fl.wire.signed import decode_signed, is_signed

__all__ = ["BareEnvelope", "Envelope", "SignedEnvelope", "open_envelope"]

_log = logging.getLogger(__name__)
_TRUST = "coordinator.json"


class Envelope(Protocol):
    """What messages travel in."""

    def begin(self) -> None:
        """A session with the broker begins."""

    def seal(self, topic: str, message: FromDevice) -> bytes:
        """``message`` as it travels on ``topic``."""

    def open(self, topic: str, payload: bytes) -> ToDevice:
        """What came on ``topic``; raises FrameError where it cannot be read, or need not be believed."""


class BareEnvelope:
    """Messages as they are: whoever may publish on a device's topics is believed."""

    def begin(self) -> None:
        """Nothing changes."""

    def seal(self, topic: str, message: FromDevice) -> bytes:
        """``message`` as it travels."""
        return encode_message(message)

    def open(self, topic: str, payload: bytes) -> ToDevice:
        """What came; raises FrameError where it cannot be read."""
        if is_signed(payload):
            raise FrameError(
                "signed",
                "The coordinator signs its messages and wants signed ones: start this device with --identity.",
            )
        return decode_to_device(payload)


class _Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a device believes: ``key``, to which the identity's ``first`` one led, and no epoch before ``epoch``.

    ``own`` is the epoch of the device's last session. Keys are in hexadecimal.
    """

    first: str
    key: str
    epoch: int
    own: int


class SignedEnvelope:
    """Signs what the device says, and believes the coordinator's key alone.

    The identity's file names the first key. A coordinator with a later key shows that each key named the next one.
    From then on the device believes the last key. It refuses an epoch before the newest that it has heard: those are
    old messages, or a coordinator that another one has replaced. The state folder keeps the key and the epochs.

    Parameters
    ----------
    file
        The device's identity.
    state
        Its state folder.

    Raises
    ------
    ConfigError
        When the identity has no key for signatures, or names no coordinator.
    StateError
        When the state folder cannot be written.
    """

    def __init__(self, file: Path, state: Path) -> None:
        first = device_identity(file).coordinator
        assert first is not None
        self._path = state / _TRUST
        self._trust = _kept(self._path, first.hex())
        self._key, self._newest = SigningKey.read(file), Newest()
        self.begin()

    def begin(self) -> None:
        """Sign in a later epoch: another machine with a copy of the identity may have spoken in one meanwhile."""
        self._signer = Signer(self._key, max(now_ms(), self._trust.own + 1))
        self._keep(msgspec.structs.replace(self._trust, own=self._signer.epoch))

    def seal(self, topic: str, message: FromDevice) -> bytes:
        """``message`` as it travels on ``topic``. The broker says Gone in the device's name, and has no key."""
        if isinstance(message, Gone):
            return encode_message(message)
        certificate = self._key.certificate if isinstance(message, Register) else b""
        return self._signer.seal(topic, message, towards=self._trust.epoch, certificate=certificate)

    def open(self, topic: str, payload: bytes) -> ToDevice:
        """What the coordinator said on ``topic``.

        Raises FrameError where the message cannot be read, has no signature (``unsigned``) or not the coordinator's
        (``signature``), came before (``replayed``), or is of an epoch before the newest (``rollback``).
        """
        signed = decode_signed(payload)
        key = newest_key(bytes.fromhex(self._trust.key), signed.successors)
        check_signature(key, topic, signed)
        if signed.epoch < self._trust.epoch:
            raise FrameError("rollback", "The message is an old one, or of a coordinator that was replaced.")
        self._newest.take(topic, signed)
        message = decode_to_device(signed.body)
        heard = msgspec.structs.replace(self._trust, key=key.hex(), epoch=signed.epoch)
        if heard != self._trust:
            self._keep(heard)
        return message

    def _keep(self, trust: _Trust) -> None:
        write_atomically(self._path, msgspec.json.encode(trust))
        self._trust = trust


def open_envelope(signing: Path | None, state: Path) -> Envelope:
    """What the messages of a device travel in whose identity is ``signing``; raises as :class:`SignedEnvelope`."""
    return BareEnvelope() if signing is None else SignedEnvelope(signing, state)


def _kept(path: Path, first: str) -> _Trust:
    """Whom the device believes by now; whom its identity names, where it has another one since."""
    fresh = _Trust(first, first, 0, 0)
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Trust)
        bytes.fromhex(kept.key)
    except FileNotFoundError:
        return fresh
    except OSError as error:
        raise StateError(f"'{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, *UNREADABLE) as error:
        _log.warning("'%s' is damaged (%s): the device believes whom its identity names", path, error)
        return fresh
    return kept if kept.first == first else fresh
