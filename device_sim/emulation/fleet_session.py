"""An emulated fleet and its coordinator in one place: run after run on the same devices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.observer import Observer
from broker.session import serve
from broker.summary import RunSummary
from device_sim.emulation.emulation import EmulatedFleet
from device_sim.emulation.fleet_file import FleetFile
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import Register

__all__ = ["FleetOutcome", "FleetSession"]


@dataclass(frozen=True)
class FleetOutcome:
    """A finished run.

    ``step_seconds`` are what each device measured of a step in each tier before the first round, where tiers are
    ``auto``; None for a tier that it cannot do.
    """

    summary: RunSummary
    step_seconds: Mapping[str, Sequence[float | None]]


class FleetSession:
    """Devices that serve run after run; leaving the context stops them.

    Parameters
    ----------
    file
        Describes the fleet.
    address
        The broker of devices and coordinator.
    root
        Takes what is left of devices and runs.

    Attributes
    ----------
    fleet
        The devices.

    Raises
    ------
    ConfigError
        As :class:`device_sim.emulation.emulation.EmulatedFleet`.
    """

    def __init__(self, file: FleetFile, *, address: BrokerAddress, root: Path) -> None:
        self._address, self._root = address, root
        self.fleet = EmulatedFleet(file, address=address, root=root / "devices", once=False)

    def __enter__(self) -> "FleetSession":
        """Start the devices."""
        self.fleet.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop them."""
        self.fleet.__exit__(*exception)

    def train(
        self, bundle: Bundle, config: RunConfig, report: Callable[[RoundMetrics], None] = lambda _: None
    ) -> FleetOutcome:
        """Make a run, which leaves its folder under its name; ``report`` is told of every round.

        Raises as :func:`broker.session.serve`.
        """
        watch = _Watch(report)
        summary = serve(
            bundle=bundle, config=config, root=self._root / config.run, address=self._address, observer=watch
        )
        return FleetOutcome(summary, watch.step_seconds)


@dataclass
class _Watch(Observer):
    """Keeps what devices have measured, and tells of rounds."""

    report: Callable[[RoundMetrics], None]
    step_seconds: dict[str, Sequence[float | None]] = field(default_factory=dict)

    def registered(self, client: str, profile: Register) -> None:
        if profile.measured is not None:
            self.step_seconds[client] = profile.measured.step_seconds

    def round_closed(self, metrics: RoundMetrics) -> None:
        self.report(metrics)
