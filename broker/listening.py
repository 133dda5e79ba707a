"""Where an embedded broker listens, and how this machine reaches that."""

import socket

from edge_fl.core.errors import PortError

__all__ = ["listening_port", "reached_at"]


def listening_port(host: str, port: int) -> int:
    """The TCP port of ``host`` to listen on: ``port``, or a free one for 0.

    Raises PortError where it is taken or forbidden.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortError(f"Port {port} of {host} is taken or forbidden ({error.strerror}).") from error
        taken: int = probe.getsockname()[1]
        return taken


def reached_at(host: str) -> str:
    """The address by which this machine reaches what listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
