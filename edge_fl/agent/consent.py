"""When a device would rather not train: its battery is low, its network is paid by the byte, its user needs it."""

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edge_fl.core.errors import ConfigError, DeclinedError

__all__ = ["Conditions", "Machine"]

_SUPPLIES, _STAT = Path("/sys/class/power_supply"), Path("/proc/stat")
_LOOK_SECONDS = 0.5  # for which others' use of the CPUs is watched, while the agent itself waits
_ASK_SECONDS = 10.0

Metered = Literal["yes", "no", "unknown", "nobody says"]
# NetworkManager's NMMetered, of which 3 and 4 are guesses.
_METERED: dict[str, Metered] = {"u 1": "yes", "u 2": "no", "u 3": "yes", "u 4": "no"}
_ASK_METERED = (
    "busctl", "get-property", "org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager",
    "org.freedesktop.NetworkManager", "Metered",
)  # fmt: skip


class Machine:
    """What Linux says of this machine.

    Parameters
    ----------
    supplies
        The kernel's class of power supplies, a folder each.
    stat
        The kernel's counters of what the CPUs did.
    """

    def __init__(self, supplies: Path = _SUPPLIES, stat: Path = _STAT) -> None:
        self._supplies, self._stat = supplies, stat

    def battery(self) -> int | None:
        """Percent left in the emptiest battery that runs the machine, 0 in one that does not say; None while it is
        charged, or has none.
        """
        supplies = [each for each in self._supplies.glob("*") if _word(each / "scope") != "Device"]  # a mouse's
        batteries = [each for each in supplies if _word(each / "type") == "Battery"]
        plugged = any(_word(each / "online") not in ("", "0") for each in supplies if each not in batteries)
        if plugged or any(_word(each / "status") == "Charging" for each in batteries):
            return None
        levels = (_word(each / "capacity") for each in batteries)
        return min((int(level) if level.isdigit() else 0 for level in levels), default=None)

    def metered(self) -> Metered:
        """Whether NetworkManager takes the network for a metered one."""
        try:
            found = subprocess.run(_ASK_METERED, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return "nobody says"
        return _METERED.get(found.stdout.strip(), "unknown")

    def busy(self) -> float | None:
        """The share of the CPUs' time that was used just now, in [0, 1]; None where there are no such counters."""
        try:
            idle, total = self._cpu_time()
            time.sleep(_LOOK_SECONDS)
            later_idle, later_total = self._cpu_time()
        except (OSError, ValueError, IndexError):
            return None
        return 1 - (later_idle - idle) / max(later_total - total, 1)

    def _cpu_time(self) -> tuple[int, int]:
        """Ticks that all CPUs were idle, and all ticks, since the machine was started."""
        with self._stat.open(encoding="ascii") as file:
            ticks = [int(count) for count in file.readline().split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)


@dataclass(frozen=True)
class Conditions:
    """What must hold for a task to be begun; a device that declines says why, and is let be for a while.

    Parameters
    ----------
    least_battery
        Percent that the battery must hold while the device is not charged; None where that does not matter.
    unmetered
        Whether the network must be one that is not metered.
    most_busy
        The share of the CPUs, in [0, 1], that others may use; None where that does not matter.
    machine
        What is asked.

    Raises
    ------
    ConfigError
        When this machine cannot tell.
    """

    least_battery: int | None = None
    unmetered: bool = False
    most_busy: float | None = None
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        if self.unmetered and self.machine.metered() == "nobody says":
            raise ConfigError("No NetworkManager says here whether the network is metered; leave out --unmetered.")
        if self.most_busy is not None and self.machine.busy() is None:
            raise ConfigError("Nothing says here how busy the CPUs are; leave out --most-busy.")

    def check(self) -> None:
        """Raise DeclinedError, in one sentence, when the device would rather not train now."""
        for look in (self._power, self._network, self._use):
            if reason := look():
                raise DeclinedError(reason)

    def _power(self) -> str:
        level = None if self.least_battery is None else self.machine.battery()
        if level is None or self.least_battery is None or level >= self.least_battery:
            return ""
        return f"The battery is at {level} %, below {self.least_battery} %, and the device is not being charged."

    def _network(self) -> str:
        metered = self.machine.metered() if self.unmetered else "no"
        if metered == "no":
            return ""
        return "The network is metered." if metered == "yes" else "It is not known whether the network is metered."

    def _use(self) -> str:
        busy = None if self.most_busy is None else self.machine.busy()
        if busy is None or self.most_busy is None or busy <= self.most_busy:
            return ""
        return f"Others use {busy:.0%} of the CPUs, more than {self.most_busy:.0%}."


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
