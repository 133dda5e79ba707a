"""The one-time tokens of a fleet, in ``tokens.json`` of its folder: of each secret a hash only.

A secret has 128 random bits, so one SHA-256 is enough. A token of a name replaces an earlier one. A token that was used
stays for 30 days with the certificate that it gave, so that a device whose answer was lost gets it again.
"""

import datetime as dt
import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from broker.provision.authority import Authority
from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import StateError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.identity.token import Token

__all__ = ["Kept", "Tokens"]

_FILE = "tokens.json"
_LARGEST = 64 << 20  # bytes
_REMEMBERED = dt.timedelta(days=30)


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of a token: ``secret`` is the SHA-256 of its secret, ``certificate`` (DER) what it gave."""

    id: str
    name: str
    secret: bytes
    until: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    certificate: bytes = b""

    def opens_by(self, password: str | None) -> bool:
        """Whether ``password`` is the token's secret in hexadecimal; in a time that tells nothing."""
        return hmac.compare_digest(hashlib.sha256((password or "").encode()).digest(), self.secret)

    def gave(self, key: Ed25519PublicKey) -> bool:
        """Whether the certificate is of ``key``; raises StateError where it is damaged."""
        try:
            return x509.load_der_x509_certificate(self.certificate).public_key() == key
        except (ValueError, x509.InvalidVersion) as error:
            raise StateError(f"What the token of '{self.name}' gave is damaged: make the token anew.") from error

    @property
    def expired(self) -> bool:
        """Whether it came too late, by this machine's clock."""
        return dt.datetime.now(dt.UTC) >= self.until

    @property
    def waits(self) -> bool:
        """Whether a device may still come with it."""
        return not self.certificate and not self.expired


class Tokens:
    """The tokens in a fleet's folder; raises StateError where their file is damaged.

    Whoever changes them holds the folder's lock (:mod:`broker.provision.lock`).
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        try:
            with self._file.open("rb") as held:
                self.kept = msgspec.json.decode(held.read(_LARGEST), type=tuple[Kept, ...])
        except FileNotFoundError:
            self.kept = ()
        except OSError as error:
            raise StateError(f"'{self._file}' cannot be read: {error.strerror}.") from error
        except UNREADABLE as error:
            raise StateError(f"'{self._file}' is damaged: remove it, and make its tokens anew.") from error

    @property
    def waiting(self) -> tuple[Kept, ...]:
        """Those with which a device may still come."""
        return tuple(kept for kept in self.kept if kept.waits)

    def find(self, token: str) -> Kept | None:
        """The token of that id."""
        return next((kept for kept in self.kept if kept.id == token), None)

    def make(self, authority: Authority, name: str, *, hours: float) -> Token:
        """A new token by which a device becomes ``name``.

        Raises ConfigError where the name is no device's, or is taken.
        """
        authority.check_free(name)
        secret, token = secrets.token_bytes(16), secrets.token_hex(8)
        now = dt.datetime.now(dt.UTC)
        kept = Kept(token, name, hashlib.sha256(secret.hex().encode()).digest(), now + dt.timedelta(hours=hours))
        others = (
            each
            for each in self.kept
            if (each.name != name or each.certificate) and now - each.until < _REMEMBERED
        )
        self._keep((*others, kept))
        return Token(authority.enrol, authority.fleet, name, token, secret, authority.fingerprint)

    def spend(self, token: str, certificate: bytes) -> None:
        """Remember what a token gave."""
        self._keep(
            tuple(
                msgspec.structs.replace(kept, certificate=certificate) if kept.id == token else kept
                for kept in self.kept
            )
        )

    def revoke(self, name: str) -> bool:
        """Forget the tokens of ``name`` that wait; whether there were any."""
        left = tuple(kept for kept in self.kept if kept.name != name or kept.certificate)
        if len(left) == len(self.kept):
            return False
        self._keep(left)
        return True

    def _keep(self, kept: tuple[Kept, ...]) -> None:
        write_atomically(self._file, msgspec.json.format(msgspec.json.encode(kept)), secret=True)
        self.kept = kept
