"""An identity in one PEM file: a device's or a coordinator's name, its certificate and key, and whom it trusts.

The lines before the first certificate say ``Id: NAME`` and, where one is known, ``Broker: ADDRESS``. ssl, OpenSSL and
Mosquitto skip them.
"""

from dataclasses import dataclass
from pathlib import Path

from edge_fl.core.errors import ConfigError
from edge_fl.transport.access import Access

__all__ = ["Identity", "identity_text", "read_identity"]

_LARGEST = 1 << 20  # bytes
_BEGIN = "-----BEGIN "


@dataclass(frozen=True)
class Identity:
    """What a file says: ``name`` in the fleet, and the ``broker``'s address if it has one."""

    file: Path
    name: str
    broker: str | None = None

    @property
    def access(self) -> Access:
        """What a broker lets its holder in by."""
        return Access(ca=self.file, cert=self.file, name=self.name)


def read_identity(file: str | Path) -> Identity:
    """Read an identity's file; raises ConfigError where it cannot be read, or is none."""
    file = Path(file)
    try:
        with file.open("rb") as held:
            text = held.read(_LARGEST).decode("ascii")
    except OSError as error:
        raise ConfigError(f"'{file}' cannot be read ({error.strerror}): see --identity.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{file}' is no identity: see --identity.") from error
    head, found, _ = text.partition(_BEGIN)
    said = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    if not found or "Id" not in said:
        raise ConfigError(f"'{file}' is no identity as `edge-fl provision` writes it: see --identity.")
    return Identity(file, said["Id"], said.get("Broker"))


def identity_text(name: str, broker: str | None, *, pem: str) -> str:
    """The content of an identity's file."""
    address = "" if broker is None else f"Broker: {broker}\n"
    return f"An identity of edge-fl: whoever has this file is this device.\nId: {name}\n{address}{pem}"
