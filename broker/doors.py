"""Who may enter the embedded broker, and as whom.

An identity is the name in a client certificate that ``ca`` signed, or a user of the password file. It is the client id,
too, whatever the client says: nobody can end a neighbour's session, and a topic tells who sent a message.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import re
import secrets
import ssl
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from edge_fl.core.errors import ConfigError
from edge_fl.transport.access import Access, load_own, trusting
from edge_fl.wire.messages import check_id

__all__ = ["OF_THE_HOUSE", "Doors", "Entrance", "Login", "has_hash", "hashed"]

_log = logging.getLogger(__name__)

OF_THE_HOUSE = "$coordinator"
"""The identity of the coordinator whose broker it is, which no device's id can be."""

_LINE = re.compile(r"([^:]+):\$7\$([1-9][0-9]{0,6})\$([A-Za-z0-9+/=]{8,100})\$([A-Za-z0-9+/=]{88})")
_OTHER_LINE = re.compile(r"[^:]+:\$[0-689][^$]*\$[^:\s]+")  # of a kind that Mosquitto takes, and we do not
_ITERATIONS, _SALT = 10_000, 12
_LARGEST_FILE = 16 << 20  # bytes


@dataclass(frozen=True)
class Login:
    """How a client introduces itself: user and password as it sent them, the certificate as ssl has verified it.

    ``host`` is where it comes from.
    """

    user: str | None
    password: str | None
    certificate: dict[str, Any] | None
    host: str | None = None


class Entrance(Protocol):
    """What the embedded broker asks whoever comes by: :class:`Doors`, or those of the enrol listener."""

    @property
    def cert(self) -> Path | None:
        """The broker's certificate; None for no TLS."""

    @property
    def ca(self) -> Path | None:
        """The authorities of clients' certificates; None where none is asked for."""

    @property
    def asks(self) -> bool:
        """Whether a client must show who it is."""

    @property
    def wanted(self) -> str:
        """What a client shows who it is by, for people."""

    @property
    def one_session(self) -> bool:
        """Whether whoever comes again ends the session that it had."""

    def context(self) -> ssl.SSLContext | None:
        """How TLS is spoken; raises ConfigError."""

    def version(self) -> int:
        """Changes with ``ca``."""

    def access(self) -> Access:
        """What lets the coordinator in."""

    def identity(self, login: Login) -> str | None:
        """Who the client is, None where it may not come in."""


@dataclass(frozen=True)
class Doors:
    """Doors of a broker.

    Parameters
    ----------
    cert, key
        PEM files of the broker's own certificate and its key; None for no TLS.
    ca
        PEM file of the authorities that every client's certificate must come from, and of whom they revoked; None
        where no certificate is asked for.
    passwords
        A file as ``mosquitto_passwd`` writes it, which every client must be in; None where no password is asked for.
        It is read at every login: who is added may come in, who is taken out may not come again.

    Raises
    ------
    ConfigError
        When a file cannot be read or is not what it should be; when ``ca`` is given without ``cert``.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    passwords: Path | None = None

    def __post_init__(self) -> None:
        if self.cert is None and (self.key or self.ca):
            raise ConfigError("The embedded broker asks for certificates in TLS only: give its own with --cert.")
        if self.passwords is not None and not _users(self.passwords):
            _log.warning("'%s' names no user yet: nobody can log in", self.passwords)

    @property
    def asks(self) -> bool:
        """Whether a client must show who it is."""
        return self.ca is not None or self.passwords is not None

    @property
    def wanted(self) -> str:
        """What whoever comes shows."""
        return "certificate or password of this fleet"

    @property
    def one_session(self) -> bool:
        """An identity is a client id, too."""
        return True

    @cached_property
    def key_of_the_house(self) -> str:
        """What lets the coordinator in, made anew for every broker."""
        return secrets.token_urlsafe(32)

    def context(self) -> ssl.SSLContext | None:
        """How TLS is spoken, 1.2 or later; None for no TLS. Raises ConfigError."""
        if self.cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_own(context, self.cert, self.key)
        if self.ca is not None:
            trusting(self.ca)  # says what is wrong with the file
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_OPTIONAL  # the coordinator has the key of the house
            if context.cert_store_stats()["crl"]:
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context

    def version(self) -> int:
        """Changes with the authorities, and with whom they revoked."""
        try:
            return 0 if self.ca is None else self.ca.stat().st_mtime_ns
        except OSError:  # it is being replaced
            return -1

    def access(self) -> Access:
        """What lets the coordinator in."""
        login = (OF_THE_HOUSE, self.key_of_the_house) if self.asks else (None, None)
        return Access(ca=self.cert, user=login[0], password=login[1], pinned=self.cert is not None)

    def identity(self, login: Login) -> str | None:
        """Who the client is, None where it may not come in. It takes milliseconds where there are passwords."""
        if login.user == OF_THE_HOUSE:
            given = (login.password or "").encode()
            return OF_THE_HOUSE if hmac.compare_digest(given, self.key_of_the_house.encode()) else None
        name = login.user
        if self.ca is not None:
            name = _common_name(login.certificate)
            if name is None or login.user not in (None, name):
                return None
        if self.passwords is not None and not _knows(self.passwords, login):
            return None
        return name if name is not None and _is_id(name) else None


def hashed(password: str) -> str:
    """A password as a password file has it, behind the name and a colon: PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(_SALT)
    found = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(found).decode()}"


def _knows(passwords: Path, login: Login) -> bool:
    try:
        line = _users(passwords).get(login.user or "")
    except ConfigError as error:
        _log.warning("nobody can log in: %s", error)
        return False
    if line is None or login.password is None:
        return False
    iterations, salt, expected = line
    return hmac.compare_digest(hashlib.pbkdf2_hmac("sha512", login.password.encode(), salt, iterations), expected)


def has_hash(line: str) -> bool:
    """Whether a line of a password file is a user with a hash: one of ours, or of another kind that Mosquitto takes."""
    return _LINE.fullmatch(line) is not None or _OTHER_LINE.fullmatch(line) is not None


def _users(file: Path) -> dict[str, tuple[int, bytes, bytes]]:
    try:
        with file.open("rb") as held:
            lines = held.read(_LARGEST_FILE).decode().splitlines()
    except OSError as error:
        raise ConfigError(f"'{file}' cannot be read ({error.strerror}): see --passwords.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{file}' holds no text in UTF-8: see --passwords.") from error
    users = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            name, iterations, salt, digest = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
            users[name] = int(iterations), base64.b64decode(salt), base64.b64decode(digest)
        except (AttributeError, binascii.Error) as error:
            raise ConfigError(
                f"Line {number} of '{file}' is no user with a password as mosquitto_passwd 2.0 writes it: make it with "
                "`edge-fl provision password`."
            ) from error
    return users


def _common_name(certificate: dict[str, Any] | None) -> str | None:
    """The name in a certificate; None where it has none, or more than one."""
    subject = (certificate or {}).get("subject", ())
    names = [value for entry in subject for kind, value in entry if kind == "commonName"]
    return names[0] if len(names) == 1 else None


def _is_id(name: str) -> bool:
    try:
        check_id(name)
    except ConfigError:
        return False
    return True
