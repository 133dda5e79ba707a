"""Whether a fleet has a coordinator already, where a broker keeps one session of all who share an identity."""

import time

from edge_fl.core.errors import RunError
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Disconnected

__all__ = ["claim"]

_QUIET_SECONDS = 4.0  # in which a coordinator that lost its session is back
_ENDINGS = 2  # one may be the broker's own end


def claim(address: BrokerAddress, *, topic: str, timeout: float) -> None:
    """Hold a session for four seconds, and say nothing: a coordinator that serves the fleet takes the session back.

    Raises
    ------
    RunError
        When the session ended twice.
    BrokerError
        When no broker answers within ``timeout`` seconds.
    """
    assert address.access.identity is not None
    session = Connection(address=address, client_id=address.access.identity, subscriptions=[topic])
    session.open(timeout=timeout)
    endings, until = 0, time.monotonic() + _QUIET_SECONDS
    try:
        while (left := until - time.monotonic()) > 0:
            if isinstance(session.next(left), Disconnected):
                endings, until = endings + 1, time.monotonic() + _QUIET_SECONDS
            if endings == _ENDINGS:
                raise RunError(
                    f"Another coordinator serves this fleet on this broker as '{address.access.identity}': it takes "
                    "the session back. End it, or give this run a broker and identities of its own."
                )
    finally:
        session.close()
