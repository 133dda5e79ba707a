"""An identity in one PEM file: a device's or a coordinator's name, its certificate and key, and whom it trusts.

The lines before the first certificate say ``Id: NAME``, ``Fleet: NAME`` and ``Broker: ADDRESS``, where these are known.
A device's file says ``Coordinator: KEY``, the Ed25519 key that it believes. A coordinator's file says ``Successor: KEY
SIGNATURE`` for each change of its key, the oldest first. Keys and signatures are in hexadecimal. ssl, OpenSSL and
Mosquitto skip these lines.
"""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_fl.core.errors import ConfigError
from edge_fl.identity.certificates import BROKER, is_coordinators
from edge_fl.identity.token import TOKEN_SCHEME
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import check_fleet
from edge_fl.wire.signed import Successor

__all__ = ["Identity", "device_identity", "identity_part", "identity_text", "parse_identity", "read_identity"]

_LARGEST = 1 << 20  # bytes
_KEY_BYTES = 32
_BEGIN = "-----BEGIN "
_REVOKED = b"-----BEGIN X509 CRL-----"
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----([A-Za-z0-9+/=\s]*)-----END \1-----")
_PARTS = ["CERTIFICATE", "PRIVATE KEY", "CERTIFICATE"]  # the holder's two, and after them an authority's
_TAKE = "take the file of this device or coordinator that `edge-fl provision` wrote"


@dataclass(frozen=True)
class Identity:
    """What a file says: ``name`` in the ``fleet``, and the ``broker``'s address if it has one.

    ``coordinator`` is the key of whom a device believes, and ``successors`` are the changes of a coordinator's own key.
    ``authorities`` are the certificates of those who may have issued others', each in base64.
    """

    file: Path
    name: str
    authorities: frozenset[str]
    broker: str | None = None
    coordinator: bytes | None = None
    successors: tuple[Successor, ...] = ()
    fleet: str | None = None

    @property
    def access(self) -> Access:
        """What a broker lets its holder in by."""
        return Access(ca=self.file, cert=self.file, name=self.name, signing=self.file)


def read_identity(file: str | Path) -> Identity:
    """Read an identity's file; raises ConfigError where it cannot be read, or is none."""
    file = Path(file)
    try:
        with file.open("rb") as held:
            text = identity_part(held.read(_LARGEST))
    except OSError as error:
        raise ConfigError(f"'{file}' cannot be read ({error.strerror}): see --identity.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{file}' is no identity: {_TAKE}.") from error
    return parse_identity(text, file)


def identity_part(content: bytes) -> str:
    """The text of an identity's file, without what Windows puts before it and the broker's list of those revoked.

    Raises UnicodeDecodeError.
    """
    return content.removeprefix(codecs.BOM_UTF8).partition(_REVOKED)[0].decode("ascii")


def parse_identity(text: str, file: Path) -> Identity:
    """The identity in the ``text`` of ``file``; raises ConfigError where it is none."""
    if text.startswith(TOKEN_SCHEME):
        raise ConfigError(
            f"'{file}' is a token: get an identity by it with `edge-fl device enrol --token-file {file}`, and use that."
        )
    head, begun, rest = text.partition(_BEGIN)
    lines = [(word, value) for word, found, value in (line.partition(": ") for line in head.splitlines()) if found]
    said = dict(lines)
    if "Id" not in said:
        raise ConfigError(f"'{file}' {_none(begun + rest)}: {_TAKE}.")
    if not _whole(begun + rest):
        raise ConfigError(f"'{file}' is an identity that is cut off or damaged: copy the file again.")
    try:
        key = bytes.fromhex(said["Coordinator"]) if "Coordinator" in said else None
        successors = tuple(_successor(value) for word, value in lines if word == "Successor")
        if key is not None and len(key) != _KEY_BYTES:
            raise ValueError("a key of another length")
    except ValueError as error:
        raise ConfigError(f"'{file}' is an identity whose keys are damaged: copy the file again.") from error
    try:
        if "Broker" in said:
            BrokerAddress.parse(said["Broker"])
        if "Fleet" in said:
            check_fleet(said["Fleet"])
    except ConfigError as error:
        raise ConfigError(
            f"'{file}' is an identity whose broker's address or fleet is damaged: copy the file again."
        ) from error
    certificates = [
        "".join(match[2].split()) for match in _BLOCK.finditer(begun + rest) if match[1] == "CERTIFICATE"
    ]
    return Identity(
        file, said["Id"], frozenset(certificates[1:]), said.get("Broker"), key, successors, said.get("Fleet")
    )


def device_identity(file: str | Path) -> Identity:
    """Read a device's file; raises ConfigError as :func:`read_identity`, and where it is another's than a device's."""
    found = read_identity(file)
    if found.name == BROKER or is_coordinators(found.name):
        raise ConfigError(f"'{file}' is the {found.name}'s file: take the file of this device.")
    if found.coordinator is None:
        raise ConfigError(f"'{file}' names no coordinator, so it is damaged or no device's: copy the file again.")
    return found


def _none(pem: str) -> str:
    """What a file without a name is."""
    if not pem:
        return "is no identity"
    if "PRIVATE KEY-----" in pem and "CERTIFICATE-----" not in pem:
        return "is a secret key by itself, which belongs to whoever signs with it alone"
    return "holds certificates and no name"


def _whole(pem: str) -> bool:
    """Whether blocks are there to the end, those of the holder and one of an authority at least."""
    left = _BLOCK.sub("", pem)
    kinds = [match[1] for match in _BLOCK.finditer(pem)]
    return _BEGIN not in left and [_kind(name) for name in kinds[: len(_PARTS)]] == _PARTS


def _kind(name: str) -> str:
    """``EC PRIVATE KEY`` is one, too."""
    return "PRIVATE KEY" if name.endswith(" PRIVATE KEY") else name


def identity_text(
    name: str,
    broker: str | None,
    *,
    pem: str,
    fleet: str | None = None,
    coordinator: bytes | None = None,
    successors: Sequence[Successor] = (),
) -> str:
    """The content of an identity's file."""
    lines = ["An identity of edge-fl: whoever has this file is this device.", f"Id: {name}"]
    lines += [] if fleet is None else [f"Fleet: {fleet}"]
    lines += [] if broker is None else [f"Broker: {broker}"]
    lines += [] if coordinator is None else [f"Coordinator: {coordinator.hex()}"]
    lines += [f"Successor: {each.key.hex()} {each.signature.hex()}" for each in successors]
    return "\n".join([*lines, pem])


def _successor(value: str) -> Successor:
    key, _, signature = value.partition(" ")
    return Successor(bytes.fromhex(key), bytes.fromhex(signature))
