"""Keys that sign messages, and what is checked of a signature. Imports the package cryptography when a key is read."""

import datetime as dt
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.identity.file import read_identity
from edge_fl.wire.messages import FromDevice, ToDevice, encode_message
from edge_fl.wire.signed import LATEST, Signed, Successor, encode_signed, to_sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "Newest",
    "Signer",
    "SigningKey",
    "check_signature",
    "newest_key",
    "now_ms",
    "signature_holds",
    "successor_of",
]

_SUCCESSION = b"edge-fl coordinator key 1\0"


class SigningKey:
    """The Ed25519 key of an identity's file.

    Attributes
    ----------
    public
        Its public half, 32 bytes.
    certificate
        The identity's certificate, X.509 in DER.
    """

    def __init__(self, private: "Ed25519PrivateKey", certificate: bytes = b"") -> None:
        self._private = private
        self.public, self.certificate = private.public_key().public_bytes_raw(), certificate

    @classmethod
    def read(cls, file: Path) -> "SigningKey":
        """The key of the identity in ``file``.

        Raises
        ------
        ConfigError
            When the file cannot be read, holds no Ed25519 key, or what does not belong together.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

        try:
            content = file.read_bytes()
            certificate = x509.load_pem_x509_certificate(content)
            begin = content.index(b"-----BEGIN PRIVATE KEY-----")
            private = load_pem_private_key(content[begin:], password=None)
        except OSError as error:
            raise ConfigError(f"'{file}' cannot be read ({error.strerror}): see --identity.") from error
        except ValueError as error:
            raise ConfigError(f"'{file}' holds no certificate with its key: copy the file again.") from error
        if not isinstance(private, Ed25519PrivateKey):
            raise ConfigError(
                f"'{file}' holds no Ed25519 key, which signs messages: make it anew with `edge-fl provision rotate`."
            )
        if private.public_key() != certificate.public_key():
            raise ConfigError(f"'{file}' holds another's key than its certificate's: copy the file again.")
        name = read_identity(file).name
        if [held.value for held in certificate.subject.get_attributes_for_oid(x509.OID_COMMON_NAME)] != [name]:
            raise ConfigError(f"'{file}' is called '{name}' and holds another's certificate: copy the file again.")
        return cls(private, certificate.public_bytes(Encoding.DER))

    @property
    def until(self) -> dt.datetime:
        """When the identity's certificate ends to hold."""
        from cryptography import x509

        return x509.load_der_x509_certificate(self.certificate).not_valid_after_utc

    def sign(self, data: bytes) -> bytes:
        """The signature of ``data``, 64 bytes."""
        return self._private.sign(data)


class Signer:
    """Signs what one side says in an epoch: each message has that, and a number that grows.

    Parameters
    ----------
    key
        Whose signature it is.
    epoch
        When the process, or a device's session, began: milliseconds since 1970.
    """

    def __init__(self, key: SigningKey, epoch: int) -> None:
        self.key, self.epoch = key, epoch
        self._sent: Counter[str] = Counter()

    def seal(
        self,
        topic: str,
        message: FromDevice | ToDevice,
        *,
        towards: int = 0,
        certificate: bytes = b"",
        successors: tuple[Successor, ...] = (),
    ) -> bytes:
        """The ``message`` as it travels on ``topic``; the rest is as :class:`edge_fl.wire.signed.Signed` has it."""
        self._sent[topic] += 1
        unsigned = Signed(
            self.epoch, self._sent[topic], towards, encode_message(message), bytes(64), certificate, successors
        )
        signature = self.key.sign(to_sign(topic, unsigned))
        return encode_signed(msgspec.structs.replace(unsigned, signature=signature))


class Newest:
    """Takes each message of a topic once, and none that is older than one that was taken."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[int, int]] = {}

    def take(self, topic: str, signed: Signed) -> None:
        """Take a message whose signature holds; raises FrameError (``replayed``) on one that came before."""
        moment = signed.epoch, signed.sequence
        if moment <= self._taken.get(topic, (0, 0)):
            raise FrameError("replayed", "The message came before, or a newer one did.")
        self._taken[topic] = moment


def check_signature(key: bytes, topic: str, signed: Signed) -> None:
    """Raises FrameError (``signature``) where ``signed``, which came on ``topic``, is not signed by ``key``."""
    if not signature_holds(key, signed.signature, to_sign(topic, signed)):
        raise FrameError("signature", "The message is not signed by whom it should be.")


def newest_key(known: bytes, successors: tuple[Successor, ...]) -> bytes:
    """The key that ``successors`` lead to from the one that is ``known``; itself where none follows it."""
    for successor in successors:
        if signature_holds(known, successor.signature, _SUCCESSION + successor.key):
            known = successor.key
    return known


def successor_of(old: SigningKey, new: SigningKey) -> Successor:
    """The statement of the ``old`` key that the ``new`` one is in its place."""
    return Successor(new.public, old.sign(_SUCCESSION + new.public))


def now_ms() -> int:
    """The clock of this machine as an epoch: milliseconds since 1970."""
    return min(max(time.time_ns() // 1_000_000, 1), LATEST)


def signature_holds(key: bytes, signature: bytes, data: bytes) -> bool:
    """Whether ``signature`` is the Ed25519 signature of ``data`` under ``key``."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
