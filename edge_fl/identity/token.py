"""One-time tokens of enrolment, as a short text: where a device enrols, as whom, by what secret, and whom it believes.

The text is ``edge-fl-enrol:1:`` and base64url (without padding) of a CRC-32 (little-endian) and the msgpack of
:class:`Token`.
"""

import base64
import binascii
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec

from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import check_fleet, check_id, checked_body, sealed_body

__all__ = ["TOKEN_SCHEME", "VARIABLE", "Token", "read_token", "token_of", "token_text"]

VARIABLE = "EDGE_FL_TOKEN"
"""The environment variable that may hold a token."""
TOKEN_SCHEME = "edge-fl-enrol:"
"""What the text of a token begins with."""

_VERSION = "1"
_LONGEST = 1024  # characters


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What a token says.

    Parameters
    ----------
    listener
        The address of the enrol listener, ``mqtts://host:port``.
    fleet, name
        The fleet's name, and the device's.
    id
        The token's own name, 16 hexadecimal digits; the listener's user name.
    secret
        16 random bytes; in hexadecimal the listener's password. No ``repr`` shows it.
    authority
        SHA-256 of the certificate (DER) of the fleet's authority.
    """

    listener: Annotated[str, msgspec.Meta(max_length=300)]
    fleet: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    name: str
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$", max_length=16)]
    secret: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    authority: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]

    def __repr__(self) -> str:
        return f"Token of '{self.name}' at {self.listener}"


_decoder = msgspec.msgpack.Decoder(Token)


def token_text(token: Token) -> str:
    """A token as people and QR codes carry it."""
    body = base64.urlsafe_b64encode(sealed_body(msgspec.msgpack.encode(token))).decode().rstrip("=")
    return f"{TOKEN_SCHEME}{_VERSION}:{body}"


def token_of(text: str, source: str = "the text") -> Token:
    """Read a token's text.

    Raises ConfigError where it is none or was damaged, which names the ``source`` and does not say the text.
    """
    text = text.strip()
    if len(text) > _LONGEST or not text.startswith(TOKEN_SCHEME):
        raise ConfigError(
            f"There is no token in {source}: a token begins with '{TOKEN_SCHEME}', as `edge-fl provision token` "
            "prints it."
        )
    version, _, body = text.removeprefix(TOKEN_SCHEME).partition(":")
    if version != _VERSION:
        raise ConfigError(
            f"The token in {source} is of another version of edge-fl: use the same version on both sides."
        )
    try:
        sealed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        token = _decoder.decode(checked_body(sealed))
        check_id(token.name)
        check_fleet(token.fleet)
        address = BrokerAddress.parse(token.listener)
        if address.scheme != "mqtts":
            raise ValueError("it names no TLS listener")
    except (binascii.Error, ValueError, ConfigError, FrameError, *UNREADABLE) as error:
        raise ConfigError(f"The token in {source} is damaged: copy its whole text, or make another.") from error
    return token


def read_token(file: str | None) -> Token:
    """The token in ``file`` (``-`` for standard input), or else in :data:`VARIABLE`.

    Raises
    ------
    ConfigError
        When there is none, or it cannot be read.
    """
    if file is None:
        if VARIABLE not in os.environ:
            raise ConfigError(f"A token is needed: give --token-file FILE, --token-file - or {VARIABLE}.")
        return token_of(os.environ[VARIABLE], f"the variable {VARIABLE}")
    if file.startswith(TOKEN_SCHEME):  # which is not said: it is a secret
        raise ConfigError(
            f"--token-file takes a file, and this is a token itself: put it in a file, or in {VARIABLE}."
        )
    try:
        if file == "-":
            return token_of(sys.stdin.readline(_LONGEST + 2), "the standard input")
        with Path(file).open("rb") as held:
            return token_of(held.read(_LONGEST + 2).decode(), f"'{file}'")
    except OSError as error:
        raise ConfigError(f"'{file}' cannot be read ({error.strerror}): see --token-file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"There is no token in '{file}': see --token-file.") from error
