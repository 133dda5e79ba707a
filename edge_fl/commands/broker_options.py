"""How commands are told to reach a broker: certificates, user and password."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_fl.core.errors import ConfigError

if TYPE_CHECKING:
    from edge_fl.transport.access import Access

__all__ = [
    "Ca",
    "Cert",
    "Fleet",
    "IdentityFile",
    "Insecure",
    "Key",
    "PasswordFile",
    "User",
    "access_of",
    "broker_of",
    "device_broker",
    "fleet_of",
]

_FLEET = "edge-fl"

IdentityFile = Annotated[
    Path | None,
    typer.Option(
        "--identity",
        help="File from `edge-fl provision`: name, certificate, key, and whom to trust.",
        show_default=False,
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        help="PEM file of the authorities whose certificates are trusted [default: the system's].",
        show_default=False,
    ),
]
Cert = Annotated[Path | None, typer.Option(help="PEM file of this side's own certificate.", show_default=False)]
Key = Annotated[
    Path | None, typer.Option(help="PEM file of its key, if --cert does not hold it.", show_default=False)
]
User = Annotated[str | None, typer.Option(help="User name at the broker.", show_default=False)]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        help="File whose first line is the password [default: the variable EDGE_FL_PASSWORD].", show_default=False
    ),
]
Fleet = Annotated[
    str | None,
    typer.Option(
        help=f"Keeps fleets on one broker apart [default: the identity's, or {_FLEET}].", show_default=False
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Talk to other machines unencrypted, or with whoever comes.")
]


def access_of(
    *,
    identity: Path | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    user: str | None,
    password_file: Path | None,
    insecure: bool,
) -> "Access":
    """What opens the broker's door; raises ConfigError where options do not fit each other."""
    from edge_fl.identity.file import read_identity
    from edge_fl.transport.access import Access, password_of

    password = password_of(password_file) if user is not None or password_file is not None else None
    if identity is None:
        return Access(ca=ca, cert=cert, key=key, user=user, password=password, insecure=insecure)
    if cert is not None or key is not None:
        raise ConfigError("--identity holds a certificate and its key: leave --cert and --key out.")
    found = read_identity(identity).access
    return replace(found, ca=ca or found.ca, user=user, password=password, insecure=insecure)


def broker_of(identity: Path | None) -> str:
    """The broker's address that an identity's file names; empty where there is none, or it is the broker's own."""
    from edge_fl.identity.file import read_identity

    return "" if identity is None else read_identity(identity).broker or ""


def device_broker(identity: Path | None) -> str:
    """As :func:`broker_of`, of a device's file; raises ConfigError where it is another's."""
    from edge_fl.identity.file import device_identity

    return "" if identity is None else device_identity(identity).broker or ""


def fleet_of(identity: Path | None, given: str | None) -> str:
    """The fleet's name: as ``given``, or in the identity's file; raises ConfigError where these are two."""
    from edge_fl.identity.file import read_identity
    from edge_fl.wire.messages import check_fleet

    named = None if identity is None else read_identity(identity).fleet
    if None not in (given, named) and given != named:
        raise ConfigError(f"'{identity}' is of the fleet '{named}': leave --fleet out.")
    return check_fleet(given or named or _FLEET)
