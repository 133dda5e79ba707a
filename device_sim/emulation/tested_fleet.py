"""A fleet that a test starts, and what it can be asked."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from broker.embedded import EmbeddedBroker
from device_sim.emulation.fleet_file import Device, parse_fleet
from device_sim.emulation.fleet_session import FleetOutcome, FleetSession
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig

__all__ = ["TestedFleet"]


class TestedFleet:
    """Devices behind a broker of their own, for as long as the context lasts.

    Parameters
    ----------
    text
        Describes them, as a fleet file does.
    folder
        A folder is made in it for what they and their runs leave.

    Raises
    ------
    ConfigError
        When the text does not describe a fleet that this machine can have.
    """

    __test__ = False  # a name like this is a test to pytest

    def __init__(self, text: str, folder: Path) -> None:
        self._file, self._root = parse_fleet(text.encode(), "the text of the fleet"), Path(mkdtemp(dir=folder))
        self._context = ExitStack()
        self._runs = 0

    def __enter__(self) -> "TestedFleet":
        """Start the broker and the devices."""
        with ExitStack() as stack:
            broker = stack.enter_context(EmbeddedBroker(port=0))
            session = FleetSession(self._file, address=broker.address, root=self._root)
            self._session = stack.enter_context(session)
            self._context = stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop them."""
        self._context.close()

    @property
    def devices(self) -> tuple[Device, ...]:
        """Who is in it."""
        return self._session.fleet.devices

    def problems(self) -> dict[str, str]:
        """Whose process has ended, and why in one sentence."""
        return self._session.fleet.problems()

    def train(self, bundle: Bundle | Path, method: str = "fedavg", **settings: Any) -> FleetOutcome:
        """Train ``bundle`` by ``method``; ``settings`` are those of :class:`edge_fl.runs.config.RunConfig`.

        By default every device is asked in each of 2 rounds of 10 steps of 20 samples, at step size 0.1, and has a
        minute. Raises as :func:`broker.session.serve`.
        """
        self._runs += 1
        defaults: dict[str, Any] = {
            "run": f"run-{self._runs}",
            "parameters": {},
            "rounds": 2,
            "clients_per_round": len(self.devices),
            "local_steps": 10,
            "batch": 20,
            "lr": 0.1,
            "seed": 0,
            "deadline": 60.0,
            "wait": 60.0,
        }
        config = RunConfig(method=method, **{**defaults, **settings})
        return self._session.train(bundle if isinstance(bundle, Bundle) else Bundle.load(bundle), config)
