"""A device's keys for one attempt at a round: agreement, sealed shares, and streams of masks.

X25519 (RFC 7748) agrees, HKDF-SHA256 (RFC 5869) derives, ChaCha20-Poly1305 (RFC 8439) seals shares, and ChaCha20's
key stream is the generator of masks. The package cryptography has all of them.
"""

import hashlib
import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import ConfigError, FrameError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

__all__ = [
    "KEY",
    "SEALED",
    "KeyPair",
    "Session",
    "check_available",
    "commitment_of",
    "mask_stream",
    "open_sealed",
    "seal",
    "seed_stream",
]

KEY = 32
"""Bytes of a key, of a seed and of a share of either."""
SEALED = 2 * KEY + 16
"""Bytes of two shares, sealed."""

_MASKS, _SHARES, _SEED = b"edge-fl masks 1\0", b"edge-fl shares 1\0", b"edge-fl seed 1\0"


@dataclass(frozen=True)
class Session:
    """What keys are bound to: an ``attempt`` at a ``round`` of a ``run``."""

    run: str
    round: int
    attempt: int

    @property
    def context(self) -> bytes:
        """These in bytes, for what is derived or signed."""
        return f"{self.run}|{self.round}|{self.attempt}".encode()


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key: ``private`` is 32 bytes."""

    private: bytes

    @classmethod
    def fresh(cls) -> "KeyPair":
        """A new one, from the operating system's generator."""
        return cls(secrets.token_bytes(KEY))

    @cached_property
    def public(self) -> bytes:
        """Its public half, 32 bytes."""
        private = _curve().X25519PrivateKey.from_private_bytes(self.private)
        public: bytes = private.public_key().public_bytes_raw()
        return public

    def agree(self, other: bytes) -> bytes:
        """The secret that it shares with the holder of the public key ``other``, 32 bytes.

        Raises FrameError (``key``) on bytes that are no key, or one that gives everybody the same secret.
        """
        try:
            private = _curve().X25519PrivateKey.from_private_bytes(self.private)
            secret: bytes = private.exchange(_curve().X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise FrameError("key", "A member's key is none of X25519.") from error
        return secret


def mask_stream(own: KeyPair, other: bytes, session: Session, count: int) -> NDArray[np.uint32]:
    """The mask of ``count`` entries, ``[count]`` uint32, that two members share; either has it by its own key."""
    return _stream(_derived(own.agree(other), _MASKS + session.context), count)


def seed_stream(seed: bytes, session: Session, count: int) -> NDArray[np.uint32]:
    """The mask of ``count`` entries, ``[count]`` uint32, that a member makes of its own ``seed``."""
    return _stream(_derived(seed, _SEED + session.context), count)


def seal(own: KeyPair, other: bytes, session: Session, *, sender: str, receiver: str, secret: bytes) -> bytes:
    """``secret`` for the holder of the public key ``other`` alone."""
    return _cipher(own, other, session, sender, receiver).encrypt(bytes(12), secret, None)


def open_sealed(
    own: KeyPair, other: bytes, session: Session, *, sender: str, receiver: str, sealed: bytes
) -> bytes:
    """What :func:`seal` sealed; raises FrameError (``share``) where ``sender`` did not seal it for ``receiver``."""
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher(own, other, session, sender, receiver).decrypt(bytes(12), sealed, None)
    except InvalidTag as error:
        raise FrameError("share", f"The shares that '{sender}' sealed cannot be opened.") from error


def commitment_of(seed: bytes) -> bytes:
    """What a member says of its ``seed`` before anyone may learn it: 32 bytes that no other seed has."""
    return hashlib.sha256(_SEED + seed).digest()


def _cipher(own: KeyPair, other: bytes, session: Session, sender: str, receiver: str) -> "ChaCha20Poly1305":
    """A key for each direction of each two members and each attempt: a nonce of zeros is used once with each."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    way = f"|{sender}>{receiver}".encode()
    return ChaCha20Poly1305(_derived(own.agree(other), _SHARES + session.context + way))


def _derived(secret: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=purpose).derive(secret)


def _stream(key: bytes, count: int) -> NDArray[np.uint32]:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(4 * count)), dtype="<u4")


def check_available() -> None:
    """Raise ConfigError where the package cryptography is missing."""
    _curve()


def _curve() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError as error:
        raise ConfigError(
            "Secure aggregation needs the package cryptography: pip install 'edge-fl[secure]'."
        ) from error
    return x25519
