"""Links between devices and their broker: how fast, how late, how lossy."""

import re

import msgspec

from edge_fl.core.errors import ConfigError

__all__ = ["LINKS", "SEGMENT", "Link", "find_link"]

_SPEEDS = re.compile(r"(?P<down>[0-9]+(\.[0-9]+)?)/(?P<up>[0-9]+(\.[0-9]+)?)")

SEGMENT = 1460
"""Bytes of a TCP segment on Ethernet and most links that begin or end there."""


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device's link.

    Parameters
    ----------
    down, up
        Speeds in Mbps (1e6 bits a second).
    latency
        Seconds one way.
    jitter
        A message takes up to this many seconds longer, any time of them as likely as any other.
    loss
        Share of TCP segments that are lost and sent again, in [0, 1).
    recovery
        Seconds until that is noticed; by default the shortest retransmission timeout of Linux.
    """

    down: float
    up: float
    latency: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    recovery: float = 0.2

    def __post_init__(self) -> None:
        if not (0 < self.down < float("inf") and 0 < self.up < float("inf")):
            raise ConfigError(f"A link has speeds above 0 Mbps, not {self.down:g} down and {self.up:g} up.")
        for name in ("latency", "jitter", "recovery"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"A link's {name} is 0 seconds or more, not {getattr(self, name):g}.")
        if not 0 <= self.loss < 1:
            raise ConfigError(f"A link loses a share of segments in [0, 1), not {self.loss:g}.")

    def slowed(self, scale: float) -> "Link":
        """The same link where everything takes ``scale`` times as long."""
        return Link(
            down=self.down / scale,
            up=self.up / scale,
            latency=self.latency * scale,
            jitter=self.jitter * scale,
            loss=self.loss,
            recovery=self.recovery * scale,
        )

    def disturbed(self, size: int) -> float:
        """The probability that a message of ``size`` bytes loses a segment on its way."""
        return 1 - float((1 - self.loss) ** -(-size // SEGMENT))

    def delay(self, size: int) -> float:
        """Mean seconds by which a message of ``size`` bytes comes later than its bytes take."""
        return self.latency + self.jitter / 2 + self.disturbed(size) * self.recovery


LINKS: dict[str, Link] = {
    "3g": Link(1.6, 0.768),
    "dsl": Link(1.5, 0.384),
    "cable": Link(5.0, 1.0),
    "4g": Link(9.0, 9.0),
    "lte": Link(12.0, 12.0),
    "wifi": Link(30.0, 15.0),
    "5g": Link(110.6, 14.0),
    "fibre": Link(20.0, 5.0),
}
"""Links by name, without latency. ``5g`` is FedBIAD's (Xue et al., 2023, section VI-C: T-Mobile's network); ``wifi`` is
Firefox's throttling profile of that name; the others are those of WebPageTest (``connectivity.ini.sample``: 3G, DSL,
Cable, 4G, LTE, FIOS), which are what is seen in use rather than what is sold, so that its fibre is slower than 5G.
"""


def find_link(text: str) -> Link:
    """A link by name, or by its speeds down and up in Mbps, such as ``110.6/14``; ConfigError when it is neither."""
    if text in LINKS:
        return LINKS[text]
    speeds = _SPEEDS.fullmatch(text)
    if speeds is None:
        raise ConfigError(
            f"There is no link '{text}'; there are {', '.join(LINKS)}, or give Mbps down and up, such as 110.6/14."
        )
    return Link(float(speeds["down"]), float(speeds["up"]))
