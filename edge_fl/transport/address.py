"""How a broker is reached: its address, and what opens its door."""

import ipaddress
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import urlsplit

from edge_fl.core.errors import ConfigError
from edge_fl.transport.access import Access

__all__ = ["BrokerAddress", "is_loopback"]

Scheme = Literal["mqtt", "mqtts", "wss"]

_PORTS: Final[dict[Scheme, int]] = {"mqtt": 1883, "mqtts": 8883, "wss": 443}
_FORMS = "mqtt://host:1883, mqtts://host:8883 or wss://host:443/mqtt"
_MOST_NODES = 16


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker listens, and how.

    Parameters
    ----------
    scheme
        ``mqtt`` is plain TCP, ``mqtts`` is TLS, ``wss`` is a WebSocket in TLS.
    path
        Of a WebSocket, with its slash.
    access
        What the broker lets this side in by. Neither ``str`` nor ``repr`` shows any of it.
    others
        Of a cluster its other nodes, host and port each, which are reached in the same way.
    """

    host: str
    port: int
    scheme: Scheme = "mqtt"
    path: str = ""
    access: Access = field(default=Access(), repr=False)
    others: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, url: str, access: Access | None = None) -> "BrokerAddress":
        """Read ``mqtt://host[:port]``, ``mqtts://host[:port]`` or ``wss://host[:port][/path]``.

        Of a cluster the nodes stand side by side: ``mqtts://host[:port],host[:port]``.

        Raises
        ------
        ConfigError
            On anything else; where the URL holds a password, which others could read; where ``access`` needs TLS and
            the address has none; where a password would cross a network unencrypted without ``insecure``.
        """
        if "@" in url:  # the URL itself is not said: it may hold a password
            raise ConfigError(
                "A broker's address holds no user or password, which lists of processes and logs would show: give "
                "--user and --password-file, or EDGE_FL_PASSWORD."
            )
        scheme, separator, rest = url.partition("://")
        nodes, slash, path = rest.partition("/")
        if "," in nodes:
            names = nodes.split(",")
            if len(names) > _MOST_NODES:
                raise ConfigError(f"A broker's cluster has at most {_MOST_NODES} nodes, not {len(names)}.")
            each = [cls._parse_one(f"{scheme}{separator}{name}{slash}{path}", access) for name in names]
            others = tuple(dict.fromkeys((node.host, node.port) for node in each[1:]))
            return replace(each[0], others=others)
        return cls._parse_one(url, access)

    @classmethod
    def _parse_one(cls, url: str, access: Access | None) -> "BrokerAddress":
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"'{url[:200]}' is no broker address: {error}.") from error
        unused = parts.query or parts.fragment
        scheme = next((known for known in _PORTS if known == parts.scheme), None)
        if scheme is None or not host or port == 0 or unused or (parts.path.strip("/") and scheme != "wss"):
            raise ConfigError(f"A broker address looks like {_FORMS}, not '{url[:200]}'.")
        path = (parts.path or "/mqtt") if scheme == "wss" else ""
        address = cls(host, port or _PORTS[scheme], scheme, path, access or Access())
        address.check()
        return address

    def check(self) -> None:
        """ConfigError where ``access`` does not fit the address."""
        access = self.access
        if self.encrypted:
            return
        if access.cert or access.ca:
            raise ConfigError(f"Certificates need TLS, which {self} has not: use mqtts:// or wss://.")
        if access.password is not None and not (self.loopback or access.insecure):
            raise ConfigError(
                f"{self} would carry the password unencrypted: use mqtts:// or wss://, or insist with --insecure."
            )

    @property
    def nodes(self) -> tuple["BrokerAddress", ...]:
        """Each node by itself, in order: of a broker that is no cluster itself."""
        return tuple(replace(self, host=host, port=port, others=()) for host, port in self._places)

    @property
    def _places(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each node."""
        return ((self.host, self.port), *self.others)

    @property
    def encrypted(self) -> bool:
        """Whether all that crosses the network is encrypted."""
        return self.scheme != "mqtt"

    @property
    def loopback(self) -> bool:
        """Whether it is this very machine, with every node."""
        return all(is_loopback(host) for host, _ in self._places)

    def __str__(self) -> str:
        nodes = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._places)
        return f"{self.scheme}://{nodes}{self.path}"


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this very machine's; of another name nobody knows before it is asked."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
