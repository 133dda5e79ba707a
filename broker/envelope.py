"""How a coordinator's messages travel: bare, or signed, with a check of each device's certificate and signature."""

import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.identity.certificates import BROKER, Authority, Holder, refused
from edge_fl.identity.file import read_identity
from edge_fl.identity.signing import Newest, Signer, SigningKey, check_signature, now_ms, signature_holds
from edge_fl.wire.messages import (
    FromDevice,
    Gone,
    Hello,
    Register,
    Registered,
    ToDevice,
    decode_from_device,
    decode_to_device,
    encode_message,
)
from edge_fl.wire.signed import LATEST, Signed, decode_signed, is_signed

if TYPE_CHECKING:
    from cryptography.x509 import CertificateRevocationList

__all__ = ["BareEnvelope", "Envelope", "SignedEnvelope", "open_envelope"]

_log = logging.getLogger(__name__)
_AHEAD_MS = 24 * 3600 * 1000  # by which another clock may be ahead of this one
_REVOKED = "revoked.pem"


class Envelope(Protocol):
    """What messages travel in.

    ``epoch`` grows when devices would take the coordinator for one that was replaced: it then has to say Hello.
    """

    @property
    def epoch(self) -> int:
        """The epoch of what is said now."""

    def seal(self, topic: str, message: ToDevice) -> bytes:
        """``message`` as it travels on ``topic``."""

    def open(self, topic: str, client: str, payload: bytes) -> FromDevice:
        """What ``client`` said on ``topic``; raises FrameError where it cannot be read, or was not said by it."""

    def check(self, client: str, certificate: bytes, signature: bytes, data: bytes) -> None:
        """Raises FrameError where ``client`` did not sign ``data`` for other devices."""

    def overhear(self, topic: str, payload: bytes) -> tuple[ToDevice, bool]:
        """What a coordinator, perhaps this one, said to all, and whether it is of an epoch before this one's.

        Raises FrameError as :meth:`open`.
        """


class BareEnvelope:
    """Messages as they are: whom the broker lets publish on a device's topics is that device."""

    epoch = 0

    def seal(self, topic: str, message: ToDevice) -> bytes:
        """``message`` as it travels."""
        return encode_message(message)

    def open(self, topic: str, client: str, payload: bytes) -> FromDevice:
        """What came; raises FrameError where it cannot be read."""
        if is_signed(payload):
            raise FrameError(
                "signed", f"'{client}' believes signed messages alone: start `edge-fl serve` with --identity."
            )
        return decode_from_device(payload)

    def check(self, client: str, certificate: bytes, signature: bytes, data: bytes) -> None:
        """Nothing is signed without identities."""

    def overhear(self, topic: str, payload: bytes) -> tuple[ToDevice, bool]:
        """What came, and False; raises FrameError where it cannot be read."""
        return decode_to_device(payload), False


class SignedEnvelope:
    """Signs what the coordinator says, and takes from a device what its certificate's key has signed.

    A device shows its certificate as it registers. The coordinator keeps the key while the certificate holds, and asks
    the list of revoked ones again when that changes. A message counts once, and only for the coordinator that it
    answers. Each process has an epoch. It rises when a device, or another coordinator, knows of a later one.

    Parameters
    ----------
    file
        The coordinator's identity. ``revoked.pem`` beside it, if there, says whose certificates are taken back.

    Raises
    ------
    ConfigError
        When the identity has no key for signatures, or no authority.
    """

    def __init__(self, file: Path) -> None:
        key, found = SigningKey.read(file), read_identity(file)
        self._signer, self._successors = Signer(key, now_ms()), found.successors
        self._began = self._signer.epoch
        self._newest, self._known = Newest(), dict[str, Holder]()
        self._authority = _Authority(file)

    @property
    def epoch(self) -> int:
        """The epoch of what is said now."""
        return self._signer.epoch

    def seal(self, topic: str, message: ToDevice) -> bytes:
        """``message`` as it travels on ``topic``."""
        introduces = isinstance(message, Hello | Registered)
        return self._signer.seal(topic, message, successors=self._successors if introduces else ())

    def open(self, topic: str, client: str, payload: bytes) -> FromDevice:
        """What ``client`` said on ``topic``.

        Raises FrameError where the message cannot be read, has no signature (``unsigned``) or not the client's
        (``signature``), comes with no certificate of the fleet that holds now (``certificate``), came before
        (``replayed``), or answers another coordinator (``stale``).
        """
        try:
            signed = decode_signed(payload)
        except FrameError:
            gone = decode_from_device(payload)
            if not isinstance(gone, Gone):  # which the broker says in a device's name
                raise
            return gone
        message = decode_from_device(signed.body)
        known = self._known_of(client, signed, message)
        check_signature(known.key, topic, signed)
        self._known[client] = known
        if signed.towards > self.epoch:
            self._rise(signed.towards, f"'{client}'")
        elif signed.towards < self._began and not isinstance(message, Register):
            raise FrameError("stale", "The message answers a coordinator that is gone.")
        self._newest.take(topic, signed)
        return message

    def check(self, client: str, certificate: bytes, signature: bytes, data: bytes) -> None:
        """Raises FrameError (``certificate``, ``signature``) where ``client`` did not sign ``data``."""
        self._follow_revocations()
        if not signature_holds(self._authority.check(client, certificate).key, signature, data):
            raise FrameError("signature", f"'{client}' did not sign its keys.")

    def overhear(self, topic: str, payload: bytes) -> tuple[ToDevice, bool]:
        """What a coordinator with this key, perhaps this very one, said to all, and whether it is of an earlier epoch:
        an old message, or one of a coordinator that devices do not hear. Raises FrameError as :meth:`open`.
        """
        signed = decode_signed(payload)
        check_signature(self._signer.key.public, topic, signed)
        older = signed.epoch < self.epoch
        if signed.epoch > self.epoch:
            self._rise(signed.epoch, "another coordinator")
        return decode_to_device(signed.body), older

    def _rise(self, epoch: int, by: str) -> None:
        """Say a later epoch than ``epoch`` from now on: devices refuse an earlier one."""
        if epoch > now_ms() + _AHEAD_MS or epoch == LATEST:
            when = dt.datetime.fromtimestamp(epoch / 1000, dt.UTC) if epoch < LATEST >> 8 else "the far future"
            raise FrameError("clock", f"{by} has heard a coordinator of {when}: set the clock of this machine.")
        _log.info("%s has heard a coordinator of epoch %d: going on with a later one", by, epoch)
        self._signer.epoch = epoch + 1

    def _follow_revocations(self) -> None:
        """Know those no more whose certificates were taken back; the others need not show theirs again."""
        if self._authority.news():
            revoked = self._authority.revokes
            self._known = {client: known for client, known in self._known.items() if not revoked(known.serial)}

    def _known_of(self, client: str, signed: Signed, message: FromDevice) -> Holder:
        """What ``client`` signs with; raises FrameError where its certificate does not hold."""
        self._follow_revocations()
        known = self._known.get(client)
        if isinstance(message, Register) and (known is None or known.certificate != signed.certificate):
            return self._authority.check(client, signed.certificate)
        if known is None:
            raise FrameError("unregistered", "The client showed no certificate yet: it has to register.")
        if known.until < dt.datetime.now(dt.UTC):
            raise FrameError("certificate", f"The certificate of '{client}' has expired.")
        return known


class _Authority:
    """Whose certificates hold: the last certificate of the coordinator's file, and who is revoked."""

    def __init__(self, file: Path) -> None:
        self._issuer = Authority(file)
        self._file = file.with_name(_REVOKED)
        self._seen = self._written()
        self._revoked: Callable[[int], bool] = lambda _: False
        self._otherwise = "revoked devices are kept out by the broker alone"
        if self._seen is None:
            _log.warning("'%s' is missing: %s", self._file, self._otherwise)
        elif (wrong := self._read()) is not None:
            raise ConfigError(f"'{self._file}' is {wrong}: copy it again, as revoked devices would come in.")

    def news(self) -> bool:
        """Whether the list of those revoked has changed since the last call, which reads it again."""
        written = self._written()
        if written in (None, self._seen):
            return False
        self._seen = written
        if (wrong := self._read()) is not None:
            _log.error("'%s' cannot be used (%s): %s", self._file, wrong, self._otherwise)
        return True

    def _written(self) -> int | None:
        """When the list was, in nanoseconds; None where it is missing, or is being replaced."""
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return None

    def _read(self) -> str | None:
        """Go by the list from now on; why it cannot be used, where it cannot."""
        try:
            revoked = _list_in(self._file, self._issuer)
        except (OSError, ValueError, TypeError) as error:
            return str(error)
        self._revoked = lambda serial: revoked.get_revoked_certificate_by_serial_number(serial) is not None
        self._otherwise = "the last list stands"
        return None

    def revokes(self, serial: int) -> bool:
        """Whether the certificate of this number was taken back."""
        return self._revoked(serial)

    def check(self, client: str, der: bytes) -> Holder:
        """Whose certificate it is, if it holds now; raises FrameError (``certificate``)."""
        holder = self._issuer.holder(client, der)
        if self.revokes(holder.serial):
            raise refused(client, "is revoked")
        return holder


def _list_in(file: Path, issuer: Authority) -> "CertificateRevocationList":
    """Those revoked; raises OSError, ValueError or TypeError, which say why there is no such list."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_crl(file.read_bytes())
    except ValueError as error:  # of many words
        raise ValueError("damaged") from error
    if not found.is_signature_valid(issuer.certificate.public_key()):  # type: ignore[arg-type]
        raise ValueError("another authority's")
    return found


def open_envelope(signing: Path | None) -> Envelope:
    """What the messages of a coordinator travel in whose identity is ``signing``; raises as :class:`SignedEnvelope`."""
    if signing is None:
        return BareEnvelope()
    found = read_identity(signing)
    if found.coordinator is not None or found.name == BROKER:
        what = "the broker's file" if found.name == BROKER else "a device's file, as it names a coordinator"
        raise ConfigError(f"'{signing}' is {what}: take coordinator.pem of the fleet's folder.")
    try:
        return SignedEnvelope(signing)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"'{signing}' holds no identity with its authority: see --identity.") from error
