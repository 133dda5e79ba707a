"""A simulation that replays what a fleet's devices measured, when they came and when they answered: the same run."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from broker import session
from broker.gateway import Gateway
from broker.observer import Observer, Observers
from broker.session import serve
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.simulation.schedule import Asked
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.transport.address import BrokerAddress
from edge_fl.wire.messages import Register
from tests.e2e.test_buffered import Pauser

CLIENTS, TIERS, SHARE = 5, 2, 0.2
BURST = 1e-3  # replayed seconds from one look of the gateway's to the next


class Recording(Observer):
    """In which look of the gateway's each device came, and each update was taken."""

    def __init__(self) -> None:
        self.look = 0
        self.joined: dict[str, int] = {}
        self.steps: dict[str, tuple[float, ...]] = {}
        self.taken: dict[str, list[int]] = {}

    def registered(self, client: str, profile: Register) -> None:
        self.joined[client] = self.look  # once it has measured, where it is to
        if profile.measured is not None:
            self.steps[client] = tuple(step or math.inf for step in profile.measured.step_seconds)

    def device(self, client: str, status: str) -> None:
        if status == "accepted":
            self.taken.setdefault(client, []).append(self.look)


class Replay:
    """The schedule of what was recorded; ``took`` are the seconds of the record, by client and in order."""

    def __init__(self, recording: Recording, rounds: tuple[RoundMetrics, ...]) -> None:
        self._recording = recording
        self._answers = {
            client: iter(
                [
                    (look * BURST, metrics.took[client])
                    for look, metrics in zip(looks, (m for m in rounds if client in m.uplink), strict=False)
                ]
            )
            for client, looks in recording.taken.items()
        }

    def steps(self, client: str) -> tuple[float, ...]:
        return self._recording.steps.get(client, ())

    def answer(self, asked: Asked) -> tuple[float, float]:
        if asked.tier is None:
            return asked.at, 0.0
        return next(
            self._answers.get(asked.client, iter(())), (math.inf, 0.0)
        )  # what was on its way when the run ended

    def fails(self, client: str, round: int) -> bool:
        del client, round
        return False

    def presence(self, client: str) -> Iterator[float]:
        yield self._recording.joined[client] * BURST


@pytest.mark.matrix
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fjord", {"tiers": "auto", "selection": "capability", "evaluate_on": 2}),
        pytest.param("fedbiad", {"selection": "availability", "evaluate_on": 3}, marks=pytest.mark.matrix),
        pytest.param(
            "fedmp", {"parameters": {"ratio": "bandit"}, "selection": "least-recent"}, marks=pytest.mark.matrix
        ),
        ("fedavg", {"buffer": 2}),
        pytest.param("fedbiad+dgc", {"buffer": 1}, marks=pytest.mark.matrix),
    ],
)
def test_a_fleet_is_replayed_bit_for_bit(
    *,
    system: Any,
    digits_bundle: Bundle,
    embedded: BrokerAddress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    options: dict[str, Any],
) -> None:
    recording = Recording()

    class Looking(Gateway):
        def pump(self, until: float = math.inf) -> None:
            recording.look += 1
            super().pump(until)

    monkeypatch.setattr(session, "Gateway", Looking)
    buffered = "buffer" in options
    config = system.config(method, rounds=8, clients=CLIENTS if buffered else 3, min_clients=CLIENTS, **options)
    agents = [
        AgentProcess(f"client-{i}", f"digits:{i}/{CLIENTS}", tier=i % TIERS, test_share=SHARE)
        for i in range(CLIENTS)
    ]
    with Fleet(agents, address=embedded, root=tmp_path / "fleet") as processes:
        pauser = [Pauser(processes)] if buffered else []  # holds up a device, so that others overtake it
        fleet = serve(
            bundle=digits_bundle,
            config=config,
            root=tmp_path / "run",
            address=embedded,
            observer=Observers(recording, *pauser),
        )

    replayed = Simulation(
        bundle=digits_bundle,
        config=config,
        population=Population(CLIENTS, TIERS, test_share=SHARE),
        trainer=TrainerSettings("runtime"),
        root=tmp_path / "replayed",
        observer=Observer(),
        schedule=Replay(recording, fleet.rounds),
    ).run()

    for name in ("scores", "loss", "train_loss", "uplink", "excused", "tiers", "took", "stale", "on_devices"):
        assert [getattr(m, name) for m in replayed.rounds] == [getattr(m, name) for m in fleet.rounds], name
    one, other = load_file(fleet.weights), load_file(replayed.weights)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert buffered == any(metrics.stale for metrics in fleet.rounds)
    assert bool(config.evaluate_on) == any(metrics.on_devices for metrics in fleet.rounds)
