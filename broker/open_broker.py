"""The broker that a run is coordinated over: one that runs somewhere, or the embedded one.

Beyond this machine neither is used without encryption and a credential, unless the operator insists.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from broker.doors import Doors
from broker.embedded import EmbeddedBroker
from broker.turned_away import TurnedAway
from edge_fl.core.errors import ConfigError, PortError
from edge_fl.identity.certificates import BROKER
from edge_fl.identity.file import read_identity
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress, is_loopback
from edge_fl.wire.messages import Topics

__all__ = ["EMBEDDED", "OpenBroker", "open_broker"]

EMBEDDED = "embedded"
_LOOPBACK, _PORT, _TLS_PORT = "127.0.0.1", 1883, 8883


@dataclass(frozen=True)
class OpenBroker:
    """``address`` is how the coordinator reaches it, ``listens`` where devices find it.

    ``turned_away`` counts who did not come in; of a broker that runs elsewhere its log tells
    (:mod:`broker.broker_log`).
    """

    address: BrokerAddress
    listens: BrokerAddress
    turned_away: TurnedAway

    @classmethod
    def at(cls, address: BrokerAddress) -> "OpenBroker":
        """One that runs somewhere."""
        return cls(address, address, TurnedAway())


def open_broker(
    broker: str,
    stack: ExitStack,
    *,
    access: Access | None = None,
    host: str | None = None,
    port: int | None = None,
    passwords: Path | None = None,
    fleet: str = "edge-fl",
) -> OpenBroker:
    """Find the broker that ``broker`` names, or start the embedded one, which listens until ``stack`` ends.

    Parameters
    ----------
    broker
        ``embedded``, or an address as :meth:`edge_fl.transport.address.BrokerAddress.parse` reads it.
    access
        What another broker lets the coordinator in by. Of the embedded broker ``cert`` and ``key`` are its own, and
        ``ca`` are the authorities of its devices' certificates, which every device needs then. Where it has an identity
        for ``signing``, the coordinator has the one beside that.
    host, port
        The embedded broker's; None for 127.0.0.1, and for the port that `provision init` named, else 1883, with TLS
        8883.
    passwords
        The embedded broker's users, as ``mosquitto_passwd`` writes them; every device needs a password then.
    fleet
        Whose topics these are.

    Raises
    ------
    ConfigError
        When ``broker`` is no address; when options do not fit it; when it would be open or unencrypted beyond this
        machine.
    PortError, BrokerError
        When the embedded broker cannot listen.
    """
    access = access or Access()
    if broker != EMBEDDED:
        if passwords is not None or host is not None:
            raise ConfigError("--host and --passwords are the embedded broker's; leave them out with --broker.")
        return _elsewhere(BrokerAddress.parse(broker, access))
    if access.user is not None:
        raise ConfigError(
            "--user is for a broker that runs elsewhere: who may come to the embedded one, --passwords says."
        )
    cert, key, ca = (None if file is None else Path(file) for file in (access.cert, access.key, access.ca))
    doors = Doors(cert=cert, key=key, ca=ca, passwords=passwords)
    host = host or _LOOPBACK
    if not (is_loopback(host) or access.insecure or (doors.cert and doors.asks)):
        raise ConfigError(
            f"A broker on {host} would be open to all who reach it: give --cert, and --ca or --passwords, or insist "
            "with --insecure."
        )
    signing = _coordinator_beside(access.signing)
    port = _usual_port(doors, signing) if port is None else port
    try:
        embedded = stack.enter_context(EmbeddedBroker(host=host, port=port, doors=doors, topics=Topics(fleet)))
    except PortError as error:
        beside = ", or give coordinator.pem for broker.pem if the fleet's own broker runs there" if signing else ""
        raise PortError(f"{str(error).rstrip('.')}: choose another with --port{beside}.") from error
    inside = replace(embedded.address, access=replace(embedded.address.access, signing=signing))
    return OpenBroker(inside, embedded.listens, embedded.turned_away)


def _coordinator_beside(identity: Path | None) -> Path | None:
    """Whose key signs messages where the embedded broker has an ``identity``.

    Raises ConfigError where that is another's, or the coordinator's is missing or of another fleet.
    """
    if identity is None:
        return None
    broker = read_identity(identity)
    if broker.name != BROKER:
        raise ConfigError(
            f"'{identity}' is the identity of '{broker.name}', and the embedded broker has one of its own: take "
            "broker.pem of the fleet's folder."
        )
    found, revoked = identity.with_name("coordinator.pem"), identity.with_name("revoked.pem")
    if not found.exists():
        raise ConfigError(
            f"'{found}' is missing, by which the coordinator signs messages: keep it beside '{identity.name}'."
        )
    if not revoked.exists():
        raise ConfigError(
            f"'{revoked}' is missing, by which revoked devices are kept out: copy it and '{identity.name}' again from "
            "the fleet's folder."
        )
    if read_identity(found).authorities.isdisjoint(broker.authorities):
        raise ConfigError(f"'{found}' is of another fleet than '{identity}': take both from one fleet's folder.")
    return found


def _usual_port(doors: Doors, signing: Path | None) -> int:
    """Where devices look for the broker: as their identities say, and the coordinator's."""
    named = None if signing is None else read_identity(signing).broker
    if named is not None:
        return BrokerAddress.parse(named).port
    return _PORT if doors.cert is None else _TLS_PORT


def _elsewhere(address: BrokerAddress) -> OpenBroker:
    access = address.access
    safe = address.encrypted and (access.cert is not None or access.user is not None)
    if not (safe or address.loopback or access.insecure):
        raise ConfigError(
            f"{address} is open to all who reach it: use mqtts:// or wss://, with --cert or --user, or insist with "
            "--insecure."
        )
    return OpenBroker.at(address)
