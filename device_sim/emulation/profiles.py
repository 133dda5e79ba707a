"""Hardware to emulate: how fast, how much memory, on which link, at what power, each with where that was published.

What counts of a device's processor is how fast one core computes a neural network, as a train step takes one thread:
milliseconds of ResNet-18 in ncnn's benchmark, on one thread of the CPU, the mean of several turns ([ncnn]). ncnn
computes in half precision on cores that can (Cortex-A76 and later), so that older ones look slower beside them than
they are in single precision, in which edge-fl trains: the Linpack benchmark (double precision, four cores) has a
Raspberry Pi 5 at 2.5 times the speed of a Raspberry Pi 4 ([hpl]), [ncnn] at 6.4 times.

Memory is half of what the device has, an assumption: the rest is left to its system and to other programs. Speeds of
links are those of :data:`device_sim.simulation.links.LINKS`; latencies are half the round trips of WebPageTest's
``connectivity.ini.sample`` and Firefox's throttling profiles, written down from memory, and jitter and loss are
assumptions.

Sources, read unless it says otherwise:

[ncnn] https://github.com/Tencent/ncnn/blob/a4d2ea1d4422c9e849f166fd7a4aefb52f942f6a/benchmark/README.md
[hpl] https://github.com/geerlingguy/top500-benchmark, README: Linpack, and watts of the whole board while it runs
[a73] https://www.anandtech.com/show/11088, page 4: power of one loaded core of several phones, without display
[x3] https://meterpreter.org/new-benchmarks-cast-doubt-on-snapdragon-8-gen-3s-energy-efficiency: SPECint06, largest core
[nvidia] data sheets of Jetson Nano and Jetson Orin Nano: memory, and the module's lower power mode; not fetched
"""

import msgspec

from device_sim.simulation.links import LINKS, Link
from edge_fl.core.errors import ConfigError

__all__ = ["PROFILES", "Profile"]

_REFERENCE_MS = 21.94


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of device.

    Parameters
    ----------
    source
        Where the figures are from.
    resnet18_ms
        Milliseconds of ResNet-18's forward pass on a 224 x 224 image on one thread: ``benchncnn 8 1 0 -1 1``.
    memory_mb
        MB (2**20 bytes) that an agent may take, its interpreter and libraries not counted.
    link
        How it reaches its broker.
    watts
        Drawn while it trains.
    battery_wh
        What its battery holds; None for a device on mains.
    """

    source: str
    resnet18_ms: float
    memory_mb: int
    link: Link
    watts: float
    battery_wh: float | None = None

    def __post_init__(self) -> None:
        for name in ("resnet18_ms", "memory_mb", "watts"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"A profile has a {name} above 0, not {getattr(self, name):g}.")
        if self.battery_wh is not None and not 0 < self.battery_wh < float("inf"):
            raise ConfigError(f"A battery holds more than 0 Wh, not {self.battery_wh:g}.")

    @property
    def slowdown(self) -> float:
        """How many times longer a step takes than on a ``phone-high``, as which a core of this machine counts."""
        return self.resnet18_ms / _REFERENCE_MS


def _link(name: str, *, latency: float, jitter: float, loss: float) -> Link:
    return msgspec.structs.replace(LINKS[name], latency=latency, jitter=jitter, loss=loss)


_WIFI = _link("wifi", latency=0.001, jitter=0.002, loss=0.0001)
_LTE = _link("lte", latency=0.035, jitter=0.01, loss=0.0005)
_5G = _link("5g", latency=0.01, jitter=0.005, loss=0.0002)

PROFILES: dict[str, Profile] = {
    "jetson-nano": Profile(
        source="Jetson Nano, Cortex-A57 at 1.4 GHz: [ncnn] 221.60 ms; 4 GB, 5 W [nvidia]",
        resnet18_ms=221.60,
        memory_mb=2048,
        link=_WIFI,
        watts=5.0,
    ),
    "jetson-orin-nano": Profile(
        source="Jetson Orin Nano 8 GB, Cortex-A78AE at 1.5 GHz: [ncnn] 48.83 ms; 8 GB, 7 W [nvidia]",
        resnet18_ms=48.83,
        memory_mb=4096,
        link=_WIFI,
        watts=7.0,
    ),
    "raspberry-pi-4": Profile(
        source="Raspberry Pi 4 B, Cortex-A72 at 1.8 GHz: [ncnn] 191.10 ms; 4 GB; 7.2 W [hpl], with all four cores busy",
        resnet18_ms=191.10,
        memory_mb=2048,
        link=_WIFI,
        watts=7.2,
    ),
    "raspberry-pi-5": Profile(
        source="Raspberry Pi 5, Cortex-A76 at 2.4 GHz: [ncnn] 29.68 ms; 8 GB; 11 W [hpl], with all four cores busy",
        resnet18_ms=29.68,
        memory_mb=4096,
        link=_WIFI,
        watts=11.0,
    ),
    "phone-low": Profile(
        source="Snapdragon 660, Cortex-A73 at 2.2 GHz: [ncnn] 236.90 ms; 1.8 W [a73], of another A73; 3 GB and "
        "3,000 mAh at 3.85 V are assumptions",
        resnet18_ms=236.90,
        memory_mb=1536,
        link=_LTE,
        watts=1.8,
        battery_wh=11.6,
    ),
    "phone-mid": Profile(
        source="Snapdragon 675, Cortex-A76 at 2.0 GHz: [ncnn] 136.98 ms; watts as of a phone-low, 6 GB and 4,000 mAh "
        "at 3.85 V are assumptions",
        resnet18_ms=136.98,
        memory_mb=3072,
        link=_LTE,
        watts=1.8,
        battery_wh=15.4,
    ),
    "phone-high": Profile(
        source="Snapdragon 8 Gen 2, Cortex-X3 at 3.2 GHz: [ncnn] 21.94 ms; 4.9 W [x3]; 8 GB and 3,900 mAh at 3.85 V "
        "are assumptions",
        resnet18_ms=21.94,
        memory_mb=4096,
        link=_5G,
        watts=4.9,
        battery_wh=15.0,
    ),
}
"""The devices that edge-fl knows, by name."""
