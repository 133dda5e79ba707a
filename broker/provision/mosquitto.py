"""A configuration of Mosquitto 2 that knows a fleet's identities, and lets a device at its own topics alone."""

from pathlib import Path

from broker.broker_log import BROKER_LOG
from broker.provision.authority import BROKER, COORDINATOR
from edge_fl.core.atomic import write_atomically
from edge_fl.identity.certificates import worker_name
from edge_fl.wire.messages import Topics

__all__ = ["let_workers_in", "write_mosquitto"]

_CONFIG = "mosquitto.conf"
_ACL = "mosquitto.acl"


def write_mosquitto(folder: Path, *, port: int, fleet: str) -> Path:
    """Write ``mosquitto.conf`` and its access list beside the authority; returns the former.

    Raises StateError when they cannot be written.
    """
    here = folder.absolute()
    write_atomically(folder / _ACL, _acl(Topics(fleet)).encode())
    own = here / f"{BROKER}.pem"
    config = f"""\
# A broker for edge-fl, written by `edge-fl provision init`. Start it with: mosquitto -c {here / _CONFIG}
listener {port}
cafile {here / "ca.pem"}
certfile {own}
keyfile {own}
crlfile {here / "revoked.pem"}
require_certificate true
use_identity_as_username true
use_username_as_clientid true
allow_anonymous false
acl_file {here / _ACL}
persistence false
# Mosquitto drops what waits beyond 1,000 messages by default, although it has acknowledged them.
max_queued_messages 0
# The coordinator counts whom this broker turned away, and `edge-fl status` shows it.
log_dest stderr
log_dest topic
"""
    write_atomically(folder / _CONFIG, config.encode())
    return folder / _CONFIG


def let_workers_in(folder: Path, *, count: int, fleet: str) -> Path | None:
    """Have the access list in ``folder`` let the coordinator's first ``count`` workers hear devices; None without one.

    Raises StateError when it cannot be written.
    """
    file = folder / _ACL
    if not file.exists():
        return None
    held, topics = file.read_text(), Topics(fleet)
    missing = [number for number in range(1, count + 1) if f"user {worker_name(number)}\n" not in held]
    lines = [
        f"user {worker_name(number)}\ntopic read {topics.up('+', str(number))}/chunk/#\n" for number in missing
    ]
    if lines:
        write_atomically(file, "\n".join([held, *lines]).encode())
    return file


def _acl(topics: Topics) -> str:
    """``%u`` is who a client's certificate says that it is."""
    warned = (
        f"# Every device may read {topics.all}. Mosquitto warns of that at its start; you can ignore the warning."
    )
    lines = [warned, f"user {COORDINATOR}", f"topic readwrite {topics.root}/#", f"topic read {BROKER_LOG}", ""]
    lines += [f"pattern write {allowed}" for allowed in topics.writable("%u")]
    lines += [f"pattern read {allowed}" for allowed in topics.readable("%u")]
    return "\n".join(lines) + "\n"
