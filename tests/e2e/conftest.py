"""Whole systems: a real broker, agents in processes of their own, a coordinator in this one."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.embedded import EmbeddedBroker
from broker.observer import Observer
from broker.session import serve
from broker.summary import RunSummary
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.mosquitto import Mosquitto, mosquitto_program
from edge_fl.core.bundle import Bundle
from edge_fl.runs.config import RunConfig
from edge_fl.transport.address import BrokerAddress


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    if mosquitto_program() is None:
        if os.environ.get("EDGE_FL_REQUIRE_MOSQUITTO"):
            pytest.fail("mosquitto is not installed, and EDGE_FL_REQUIRE_MOSQUITTO is set")
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    with Mosquitto(tmp_path) as broker:
        yield broker


@pytest.fixture(params=["embedded", pytest.param("mosquitto", marks=(pytest.mark.mosquitto, pytest.mark.matrix))])
def address(request: pytest.FixtureRequest) -> Iterator[BrokerAddress]:
    """A broker of each kind in turn."""
    if request.param == "mosquitto":
        yield request.getfixturevalue("mosquitto").address
        return
    with EmbeddedBroker(port=0) as broker:
        yield broker.address


class System:
    """Runs agents and a coordinator to the end of a run."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        self._bundle, self.folder = bundle, folder
        self._count = self._fleets = 0

    def config(self, method: str = "fedavg", *, rounds: int = 3, clients: int = 3, **more: object) -> RunConfig:
        settings: dict[str, object] = {
            "parameters": {},
            "local_steps": 5,
            "batch": 20,
            "lr": 0.1,
            "seed": 7,
            # No test's result hangs on these, unless it sets its own: a busy machine may take its time.
            "wait": 240.0,
            "deadline": 120.0,
            "gone_after": 60.0,
            "run": f"test-{self._count}",
        }
        return RunConfig(
            method=method,
            rounds=rounds,
            clients_per_round=clients,
            **{**settings, **more},  # type: ignore[arg-type]
        )

    def agents(self, count: int = 3, *, runtime: str = "onnx") -> list[AgentProcess]:
        """The first runs programs in its own process, the others in a confined one: their bits are the same."""
        return [
            AgentProcess(f"client-{i}", f"digits:{i}/{count}", runtime=runtime, in_process=i == 0)
            for i in range(count)
        ]

    @contextmanager
    def fleet(self, agents: list[AgentProcess], address: BrokerAddress) -> Iterator[Fleet]:
        """Agents with state folders of their own."""
        self._fleets += 1
        with Fleet(agents, address=address, root=self.folder / f"fleet-{self._fleets}") as fleet:
            yield fleet

    def run(
        self,
        config: RunConfig,
        agents: list[AgentProcess],
        address: BrokerAddress,
        *,
        observer: Callable[[Fleet], Observer] = lambda _: Observer(),
        workers: int = 0,
    ) -> RunSummary:
        self._count += 1
        with self.fleet(agents, address) as fleet:
            summary = serve(
                bundle=self._bundle,
                config=config,
                root=self.folder / f"run-{self._count}",
                address=address,
                observer=observer(fleet),
                workers=workers,
            )
            fleet.wait(timeout=120)
        return summary

    def coordinate(
        self, config: RunConfig, root: Path, address: BrokerAddress, observer: Observer, workers: int = 0
    ) -> RunSummary:
        """A coordinator alone, for a fleet that is there."""
        return serve(
            bundle=self._bundle, config=config, root=root, address=address, observer=observer, workers=workers
        )


@pytest.fixture
def system(digits_bundle: Bundle, tmp_path: Path) -> System:
    return System(digits_bundle, tmp_path)


@pytest.fixture
def embedded() -> Iterator[BrokerAddress]:
    with EmbeddedBroker(port=0) as broker:
        yield broker.address
