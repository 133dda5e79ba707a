"""The simulator's virtual clock for an emulated fleet: what its rounds should take, from nothing that it timed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from benchmarks.fleet_runs import AGENTS, Attempt, FleetSetting
from broker.observer import Observer
from device_sim.emulation.fleet_file import Device
from device_sim.simulation.local_time import Local, step_seconds
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from device_sim.simulation.time_model import Clock, Traffic, traffic_of
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["VirtualFleet", "virtual_fleets"]

_REPEATS = 3


@dataclass(frozen=True)
class VirtualFleet:
    """Virtual time of one attempt, on each device in each tier.

    Parameters
    ----------
    devices
        Their profiles' links and slowdowns, at the fleet's scale.
    steps
        Processor seconds of a step on this machine, by tier.
    traffic
        Bytes to and from a client of each tier, of a simulated round.
    local_steps, deadline
        The run's.
    """

    devices: Mapping[str, Device]
    steps: Sequence[float]
    traffic: Traffic
    local_steps: int
    deadline: float

    def client(self, client: str, tier: int) -> tuple[float, float]:
        """Seconds that a device trains in a round, and that its transfers take."""
        device = self.devices[client]
        link, slowdown = device.profile.link.slowed(device.scale), device.profile.slowdown * device.scale
        clock = Clock([link], [self.steps[tier]], self.local_steps, [slowdown])
        return clock.training(0), clock.transfers(0, self.traffic.down[tier], self.traffic.up[tier])

    def round(self, metrics: RoundMetrics) -> float:
        """Seconds of a round in which each device trained in the tier that it did, until the deadline at most."""
        return min(self.deadline, max(sum(self.client(*asked)) for asked in metrics.tiers.items()))

    def joules(self, metrics: RoundMetrics) -> float:
        """What the devices draw while they train and transfer, each until the deadline at most; in device seconds."""
        return sum(
            self.devices[client].profile.watts
            * min(self.deadline, sum(self.client(client, tier)))
            / self.devices[client].scale
            for client, tier in metrics.tiers.items()
        )


def virtual_fleets(
    setting: FleetSetting, found: Sequence[Attempt], bundle: Bundle, report: Callable[[str], None]
) -> dict[str, VirtualFleet]:
    """One for each attempt, by its name: steps are timed in turn, on a machine that does nothing else."""
    report("timing local steps")
    configs = {attempt.name: setting.config(attempt) for attempt in found}
    local = [
        Local(bundle, configs[attempt.name], Population(AGENTS, attempt.tiers), longest=setting.local_steps)
        for attempt in found
    ]
    steps = step_seconds(local, repeats=_REPEATS)
    devices = {device.client: device for device in setting.file.members()}
    fleets = {}
    for attempt, seconds in zip(found, steps, strict=True):
        report(f"{attempt.name}: simulating a round")
        config = configs[attempt.name]
        traffic = _traffic(bundle, config, attempt.tiers)
        fleets[attempt.name] = VirtualFleet(devices, seconds, traffic, config.local_steps, config.deadline)
    return fleets


def _traffic(bundle: Bundle, config: RunConfig, tiers: int) -> Traffic:
    """Of the first round, in which one client of each tier makes a step."""
    population = Population(tiers, tiers)
    with TemporaryDirectory() as scratch:
        root = Path(scratch) / "run"
        simulation = Simulation(
            bundle=bundle,
            config=replace(config, clients_per_round=tiers, local_steps=1, rounds=1, tiers="registered"),
            population=population,
            trainer=TrainerSettings("runtime"),
            root=root,
            observer=Observer(),
        )
        (metrics,) = simulation.run().rounds
    return traffic_of(metrics, population.tier)
