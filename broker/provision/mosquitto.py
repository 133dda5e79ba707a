"""Configurations of Mosquitto 2 that know a fleet's identities, and let a device at its own topics alone."""

from pathlib import Path

from broker.broker_log import BROKER_LOG
from broker.provision.authority import BROKER, COORDINATOR
from broker.provision.site import Site
from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import StateError
from edge_fl.identity.certificates import worker_name
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import Topics

__all__ = ["let_site_in", "let_site_out", "let_workers_in", "site_access", "write_mosquitto", "write_site"]

_CONFIG = "mosquitto.conf"
_ACL = "mosquitto.acl"


def write_mosquitto(folder: Path, *, port: int, fleet: str) -> Path:
    """Write ``mosquitto.conf`` and its access list beside the authority; returns the former.

    Raises StateError when they cannot be written.
    """
    here = folder.absolute()
    write_atomically(folder / _ACL, _acl(Topics(fleet)))
    config = [
        f"# A broker for edge-fl, written by `edge-fl provision init`. Start it with: mosquitto -c {here / _CONFIG}",
        *_broker(port, here, f"{BROKER}.pem"),
        "# The coordinator counts whom this broker turned away, and `edge-fl status` shows it.",
        "log_dest stderr",
        "log_dest topic",
    ]
    write_atomically(folder / _CONFIG, _lines(*config))
    return folder / _CONFIG


def let_workers_in(folder: Path, *, count: int, fleet: str) -> Path | None:
    """Have the access list in ``folder`` let the coordinator's first ``count`` workers hear devices; None without one.

    Raises StateError when it cannot be written.
    """
    file = folder / _ACL
    if not file.exists():
        return None
    held, topics = _text(file), Topics(fleet)
    missing = [number for number in range(1, count + 1) if f"user {worker_name(number)}\n" not in held]
    lines = [
        f"user {worker_name(number)}\ntopic read {topics.up('+', str(number))}/chunk/#\n" for number in missing
    ]
    if lines:
        write_atomically(file, "\n".join([held, *lines]).encode())
    return file


def write_site(folder: Path, site: Site, *, fleet: str, broker: BrokerAddress) -> Path:
    """Write what the site's machine needs beside its identity, for a bridge to ``broker``; returns that folder.

    Raises StateError when a file cannot be read or written.
    """
    own, topics = folder / site.folder, Topics(fleet)
    for name in ("ca.pem", "revoked.pem"):
        write_atomically(own / name, _text(folder / name).encode())
    write_atomically(own / _ACL, _lines(*_patterns(topics)))
    write_atomically(own / _CONFIG, _config(site, topics, broker))
    return own


def site_access(site: Site, *, fleet: str) -> list[str]:
    """The lines of an access list that let the site speak and listen for its devices alone."""
    topics = Topics(fleet)
    allowed = [f"user {site.identity}", f"topic read {topics.all}"]
    for up, down in _topics_of(site, topics):
        allowed += [f"topic write {up}", f"topic read {down}"]
    return allowed


def let_site_in(folder: Path, site: Site, *, fleet: str) -> Path | None:
    """Put :meth:`site_access` into the fleet's access list in ``folder``; None without a list.

    Raises StateError when it cannot be read or written.
    """
    return _replace_user(folder / _ACL, site.identity, ["", *site_access(site, fleet=fleet)])


def let_site_out(folder: Path, identity: str) -> Path | None:
    """Take a site out of the fleet's access list in ``folder``, as :func:`let_site_in` puts it in."""
    return _replace_user(folder / _ACL, identity, [])


def _replace_user(file: Path, user: str, lines: list[str]) -> Path | None:
    """Put ``lines`` at the end of an access list in place of what it has of ``user``; None without a list."""
    if not file.exists():
        return None
    others, its_own = list[str](), False
    for line in _text(file).splitlines():
        word, _, rest = line.strip().partition(" ")
        its_own = rest == user if word == "user" else its_own and word == "topic"
        if not its_own:
            others.append(line)
    while others and not others[-1]:
        others.pop()
    write_atomically(file, _lines(*others, *lines))
    return file


def _config(site: Site, topics: Topics, broker: BrokerAddress) -> bytes:
    bridged = [f"topic {topics.all} in 1"]
    for up, down in _topics_of(site, topics):
        bridged += [f"topic {up} out 1", f"topic {down} in 1"]
    return _lines(
        f"# The broker of site '{site.name}', written by `edge-fl provision site`.",
        "# Start it in this folder: mosquitto -c mosquitto.conf",
        *_broker(site.port, Path(), site.file.name),
        "",
        f"connection {site.name}",
        f"address {broker.host}:{broker.port}",
        "bridge_cafile ca.pem",
        f"bridge_certfile {site.file.name}",
        f"bridge_keyfile {site.file.name}",
        f"remote_clientid {site.identity}",
        "notifications false",
        "# What does not arrive is asked for again: nothing needs to wait for a broken line.",
        "cleansession true",
        "restart_timeout 1 30",
        *bridged,
    )


def _topics_of(site: Site, topics: Topics) -> list[tuple[str, str]]:
    """The filters of what each device of the site sends, and of what it is sent."""
    return [(f"{topics.up(device, '+')}/#", f"{topics.down(device)}/#") for device in site.devices]


def _broker(port: int, folder: Path, own: str) -> list[str]:
    """A listener that knows who comes by a certificate, with files in ``folder``, of which ``own`` is its identity."""
    return [
        f"listener {port}",
        f"cafile {folder / 'ca.pem'}",
        f"certfile {folder / own}",
        f"keyfile {folder / own}",
        f"crlfile {folder / 'revoked.pem'}",
        "require_certificate true",
        "use_identity_as_username true",
        "use_username_as_clientid true",
        "allow_anonymous false",
        f"acl_file {folder / _ACL}",
        "persistence false",
        "# Mosquitto drops what waits beyond 1,000 messages by default, although it has acknowledged them.",
        "max_queued_messages 0",
    ]


def _acl(topics: Topics) -> bytes:
    warned = (
        f"# Every device may read {topics.all}. Mosquitto warns of that at its start; you can ignore the warning."
    )
    coordinator = [f"user {COORDINATOR}", f"topic readwrite {topics.root}/#", f"topic read {BROKER_LOG}", ""]
    return _lines(warned, *coordinator, *_patterns(topics))


def _patterns(topics: Topics) -> list[str]:
    """What each device may do; ``%u`` is who a client's certificate says that it is."""
    written = [f"pattern write {allowed}" for allowed in topics.writable("%u")]
    return [*written, *(f"pattern read {allowed}" for allowed in topics.readable("%u"))]


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise StateError(f"'{file}' cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise StateError(f"'{file}' is not text in UTF-8: restore it from your copy of the folder.") from error
