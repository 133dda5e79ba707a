"""The file that describes a fleet of emulated devices (docs/fleet.md)."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sim.emulation.profiles import PROFILES, Profile
from edge_fl.core.errors import ConfigError, said
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.runtimes.base import RUNTIMES
from edge_fl.wire.messages import MOST_TIERS

__all__ = ["Device", "FleetFile", "Group", "parse_fleet", "read_fleet"]

_ROUNDING = 1e-9  # of shares that were meant to fill a machine

Times = tuple[tuple[float, float], ...]
"""Seconds of the devices' time from ... to ..., since the fleet was started."""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices that are alike.

    Parameters
    ----------
    profile
        Their hardware's name, among the file's own ``profiles`` or :data:`device_sim.emulation.profiles.PROFILES`.
    count
        How many.
    tier
        What they say theirs is, as ``edge-fl device --tier``.
    memory_mb
        Takes the place of the profile's.
    test_share
        Of its data, what each keeps out of training, as ``edge-fl device --test-share``.
    online
        When they are there; empty for always.
    battery
        What the battery holds at first, in [0, 1] of the profile's.
    charging
        When they are on mains; a device without a battery always is.
    """

    profile: str
    count: int = 1
    tier: int = 0
    memory_mb: int | None = None
    test_share: float = 0.0
    online: Times = ()
    battery: float = 1.0
    charging: Times = ()

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.tier < MOST_TIERS:
            raise ConfigError(
                f"There are 1 or more devices of a group, of tier 0 to {MOST_TIERS - 1}, not {self.count} of tier "
                f"{self.tier}."
            )
        if self.memory_mb is not None and self.memory_mb < 1:
            raise ConfigError(f"A device has 1 MB of memory or more, not {self.memory_mb}.")
        if not 0 <= self.battery <= 1:
            raise ConfigError(f"A battery is filled to a share in [0, 1], not {self.battery:g}.")
        for name in ("online", "charging"):
            for since, until in getattr(self, name):
                if not 0 <= since < until:
                    raise ConfigError(
                        f"A time {name} begins at 0 s or later, and ends later, unlike [{since:g}, {until:g}]."
                    )


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fleet.

    Parameters
    ----------
    devices
        Who is in it.
    data
        The data set that is cut among them, as ``partition`` says.
    runtime
        What they train in.
    scale
        Seconds that one of a device's takes here: of its processor, of its link, of its times.
    profiles
        Further hardware.
    agents_per_process
        How many agents share a process, and its memory.
    """

    devices: tuple[Group, ...]
    data: str
    partition: str = "iid"
    runtime: str = "onnx"
    scale: float = 1.0
    profiles: dict[str, Profile] = {}
    agents_per_process: int = 1

    def __post_init__(self) -> None:
        if not self.devices:
            raise ConfigError("A fleet has devices; this one has none.")
        if not 0 < self.scale < float("inf"):
            raise ConfigError(f"A fleet's scale is above 0, not {self.scale:g}.")
        if self.runtime not in RUNTIMES.names():
            raise ConfigError(f"There is no runtime '{self.runtime}'; there are {', '.join(RUNTIMES.names())}.")
        if self.agents_per_process < 1:
            raise ConfigError(f"There are 1 or more agents to a process, not {self.agents_per_process}.")
        if self.agents_per_process > 1 and any(group.online for group in self.devices):
            raise ConfigError("Devices that come and go need a process each; leave agents_per_process out.")

    def profile(self, name: str) -> Profile:
        """Hardware by its name; raises ConfigError when there is none."""
        known = PROFILES | self.profiles
        if name not in known:
            raise ConfigError(f"There is no profile '{name}'; there are {', '.join(known)}.")
        return known[name]

    def members(self) -> tuple["Device", ...]:
        """Every device: one of each group, then the second of each, and so on, as the tiers of a simulation are.

        Raises ConfigError when a profile is unknown, or when this machine has not the processors for all of them.
        """
        turns = range(max(group.count for group in self.devices))
        groups = [group for turn in turns for group in self.devices if turn < group.count]
        devices = tuple(
            Device(
                client=f"client-{i}",
                data=f"{self.data}:{i}/{len(groups)}:{self.partition}",
                group=group,
                profile=self.profile(group.profile),
                scale=self.scale,
            )
            for i, group in enumerate(groups)
        )
        for device in devices:
            if device.profile.battery_wh is None and (device.group.charging or device.group.battery != 1.0):
                raise ConfigError(
                    f"A '{device.group.profile}' has no battery to fill or to charge: leave 'battery' and 'charging' "
                    "out, or give a profile of its kind 'battery_wh'."
                )
        self._check_shares(devices)
        return devices

    def _check_shares(self, devices: tuple["Device", ...]) -> None:
        fastest, total = max(device.share for device in devices), sum(device.share for device in devices)
        cores = len(os.sched_getaffinity(0))
        if max(total / cores, fastest) > 1 + _ROUNDING:
            least = _up(self.scale * max(total / cores, fastest), 1000)
            raise ConfigError(
                f"The {len(devices)} devices need {_up(total, 100):.2f} cores, one of them {_up(fastest, 100):.2f}, "
                f"and this machine has {cores}; a scale of {least:g} would do."
            )


def _up(value: float, parts: int) -> float:
    """Rounded up, so that what a sentence says is never what would have been enough."""
    return math.ceil(value * parts * (1 - _ROUNDING)) / parts


@dataclass(frozen=True)
class Device:
    """One emulated device: its id, the data it trains on (as ``edge-fl device --data``) and its hardware."""

    client: str
    data: str
    group: Group
    profile: Profile
    scale: float

    @property
    def share(self) -> float:
        """Of a core of this machine."""
        return 1 / (self.profile.slowdown * self.scale)

    @property
    def memory_mb(self) -> int:
        """MB (2**20 bytes) that it may take, interpreter and libraries not counted."""
        return self.profile.memory_mb if self.group.memory_mb is None else self.group.memory_mb


def read_fleet(path: Path) -> FleetFile:
    """The fleet that the YAML file at ``path`` describes; raises ConfigError when it describes none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}.") from error
    return parse_fleet(content, f"'{path}'")


def parse_fleet(content: bytes, where: str) -> FleetFile:
    """The fleet that YAML describes; raises ConfigError, which says ``where``, when it describes none."""
    try:
        return msgspec.yaml.decode(content, type=FleetFile)
    except UNREADABLE as error:
        raise ConfigError(f"{where} does not describe a fleet: {said(error)}.") from error
