"""Whom Mosquitto turned away, as it publishes of its log where its configuration has ``log_dest topic``."""

import re
from typing import NamedTuple

from edge_fl.core.errors import printable

__all__ = ["BROKER_LOG", "LoggedRefusal", "is_broker_log", "read_refusal"]

BROKER_LOG = "$SYS/broker/log/+"
"""The topic filter. Mosquitto lets no client publish there."""
_PREFIX = BROKER_LOG.removesuffix("+")
_LONGEST = 300  # characters
_STAMP = r"(?:\d+: )?"
_SAID = {
    "login": re.compile(_STAMP + r"(?P<why>Client .* disconnected, not authori[sz]ed)\.", re.DOTALL),
    # One failure may have several lines of OpenSSL's, numbered from 0. What went wrong comes last.
    "handshake": re.compile(_STAMP + r"OpenSSL Error(\[0\])?: (.*:)?(?P<why>[^:]*)", re.DOTALL),
}
_SENTENCES = {"login": "Mosquitto says: {}.", "handshake": "TLS with a client failed: {}."}


class LoggedRefusal(NamedTuple):
    """One client that was turned away: the ``code`` that the embedded broker counts it by, and why."""

    code: str
    reason: str


def is_broker_log(topic: str) -> bool:
    """Whether a message on ``topic`` is a line of the broker's log."""
    return topic.startswith(_PREFIX)


def read_refusal(payload: bytes) -> LoggedRefusal | None:
    """Whom a line of the log says was turned away; None where it says something else."""
    line = payload.decode(errors="replace")
    for code, pattern in _SAID.items():
        if (found := pattern.fullmatch(line)) is not None:
            why = found["why"].strip().rstrip(".")
            return LoggedRefusal(code, printable(_SENTENCES[code].format(why), _LONGEST))
    return None
