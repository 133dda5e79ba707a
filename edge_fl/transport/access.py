"""What a broker lets a client in by, and what the client knows the broker by."""

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from edge_fl.core.errors import ConfigError

__all__ = ["PASSWORD", "Access", "load_own", "password_of", "trusting"]

PASSWORD = "EDGE_FL_PASSWORD"
"""The environment variable that may hold the password."""

_LONGEST = 65535  # bytes, as MQTT has it


@dataclass(frozen=True)
class Access:
    """Certificates, a user and a password; all may be left out.

    Parameters
    ----------
    ca
        PEM file of the authorities that the broker's certificate may come from; None for those of the system.
    cert, key
        PEM files of this side's own certificate and its key, which may be in one file (``key`` is None then).
    user, password
        As the broker has them.
    name
        Whom the certificate names; None where nobody has said.
    insecure
        Whether what is unencrypted or open to all may leave this machine.
    pinned
        Whether ``ca`` is the very certificate of the broker, which is taken whatever names it has.
    signing
        The identity whose key signs this side's messages, and that says whose messages are believed; None where
        messages carry no signature.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    name: str | None = None
    insecure: bool = False
    pinned: bool = False
    signing: Path | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise ConfigError("A key needs its certificate: give --cert, too.")
        if (self.user is None) is not (self.password is None):
            raise ConfigError(
                f"A user and a password go together: give --user, and --password-file or {PASSWORD}."
            )

    @property
    def identity(self) -> str | None:
        """Who the broker takes this side for, as far as is known here."""
        return self.user or self.name

    def context(self) -> ssl.SSLContext:
        """How TLS is spoken: 1.2 or later, the broker's certificate and name checked.

        Raises
        ------
        ConfigError
            When a file cannot be read, or holds no certificate or no key that fits.
        """
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH) if self.ca is None else trusting(self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.pinned:
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.cert is not None:
            load_own(context, self.cert, self.key)
        return context


def trusting(ca: str | Path) -> ssl.SSLContext:
    """A client's context that trusts the authorities in ``ca`` and no others; raises ConfigError without any."""
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(ca))
    except OSError as error:  # ssl's own errors, too
        raise ConfigError(f"'{ca}' {_wrong(error, 'holds no certificate in PEM form')}: see --ca.") from error


def load_own(context: ssl.SSLContext, cert: str | Path, key: str | Path | None) -> None:
    """Give ``context`` a certificate and its key; raises ConfigError where they are none, or do not fit."""

    def no_passphrase() -> str:
        raise ConfigError(
            f"The key in '{key or cert}' is encrypted, and nobody is there to ask: store it decrypted."
        )

    try:
        context.load_cert_chain(cert, key, password=no_passphrase)
    except OSError as error:
        if key is None:
            wrong = _wrong(error, "holds no certificate in PEM form with the key that fits")
            raise ConfigError(f"'{cert}' {wrong}: copy it again, or see --cert and --key.") from error
        wrong = _wrong(error, "hold no certificate in PEM form with the key that fits")
        raise ConfigError(f"'{cert}' and '{key}' {wrong}: see --cert and --key.") from error


def password_of(file: Path | None) -> str | None:
    """The first line of ``file``, or else what :data:`PASSWORD` holds.

    Raises
    ------
    ConfigError
        When the file cannot be read, or what there is cannot be a password.
    """
    if file is None:
        return _checked(os.environ[PASSWORD], PASSWORD) if PASSWORD in os.environ else None
    try:
        with file.open("rb") as held:
            line = held.readline(_LONGEST + 2).rstrip(b"\r\n")
        return _checked(line.decode(), f"'{file}'")
    except OSError as error:
        raise ConfigError(f"'{file}' {_wrong(error, '')}: see --password-file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{file}' holds no text in UTF-8: see --password-file.") from error


def _checked(password: str, where: str) -> str:
    if not password or "\0" in password or len(password.encode()) > _LONGEST:
        raise ConfigError(f"{where} holds no password: it takes one line of 1 to {_LONGEST:,} bytes.")
    return password


def _wrong(error: OSError, otherwise: str) -> str:
    """What is wrong with a file: that it cannot be read, or ``otherwise``, as ssl says little of content."""
    return otherwise if isinstance(error, ssl.SSLError) else f"cannot be read ({error.strerror})"
