"""A coordinator with workers: the bits of one alone, whoever is killed."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.summary import RunSummary
from device_sim.emulation.agent_processes import AgentProcess
from device_sim.emulation.chaos import same_weights
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import CHUNK_SIZE
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.wire.messages import Topics
from exporter.export import export_bundle
from tests.e2e.conftest import System
from tests.e2e.test_resume import metrics_of, until_round
from tests.exporter.test_per_width import STATISTICS, model, target

RECIPES = {
    "rows": ("fedbiad", {}),
    "units": ("feddrop", {}),
    "widths": ("fjord", {"widths": [1000, 500]}),
    "sparse": ("vardrop", {}),
    "compressor": ("fedavg+dgc", {}),
    "context": ("fedavg+tcs", {}),
    "signs": ("fedavg+signsgd", {}),
}
KINDS = [pytest.param(kind, marks=() if kind == "rows" else pytest.mark.matrix) for kind in RECIPES]


def config_of(system, kind: str, **more: object) -> RunConfig:
    method, parameters = RECIPES[kind]
    return system.config(method, parameters=parameters, rounds=3, quorum=1.0, **more)


def assert_alike(one: RunSummary, other: RunSummary) -> None:
    assert same_weights(one.weights, other.weights)
    for mine, theirs in zip(one.rounds, other.rounds, strict=True):
        assert (mine.uplink, mine.scores, mine.train_loss) == (theirs.uplink, theirs.scores, theirs.train_loss)
        assert mine.clipped == theirs.clipped


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_workers_are_those_of_the_coordinator(system, address: BrokerAddress, kind: str) -> None:
    config = config_of(system, kind, exact_sums=True)
    alone = system.run(config, system.agents(), address)
    for workers in (2,) if kind == "rows" else (1, 2, 7):
        assert_alike(alone, system.run(config, system.agents(), address, workers=workers))


@pytest.fixture(scope="module")
def normalised(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """With BatchNorm's statistics of both widths."""
    folder = tmp_path_factory.mktemp("normalised") / "bundle"
    return export_bundle(model(), target("onnx", widths=(1000, 500)), folder)


@pytest.mark.matrix
def test_workers_add_up_statistics_of_each_width(
    normalised: Bundle, tmp_path: Path, embedded: BrokerAddress
) -> None:
    system = System(normalised, tmp_path)
    config = system.config("heterofl", parameters={"levels": ["a", "b"]}, quorum=1.0, exact_sums=True)

    def agents() -> list[AgentProcess]:
        return [replace(agent, tier=number % 2) for number, agent in enumerate(system.agents())]

    alone = system.run(config, agents(), embedded)
    trained = load_file(alone.weights)
    for name in STATISTICS:  # a row a width
        assert (trained[name] != normalised.weights()[name]).any(axis=1).all()
    for workers in (1, 2, 7):
        assert_alike(alone, system.run(config, agents(), embedded, workers=workers))


@pytest.mark.matrix
def test_updates_that_workers_take_in_are_summed_as_others_are(system, embedded: BrokerAddress) -> None:
    """Without exact sums the coordinator adds up what workers checked."""
    config = config_of(system, "rows")
    assert_alike(
        system.run(config, system.agents(), embedded),
        system.run(config, system.agents(), embedded, workers=2),
    )


class Killer(Observer):
    """Kills a worker at drawn times from the first round on, so many times."""

    def __init__(self, seed: int, kills: int) -> None:
        self.killed, self._rng, self._kills = 0, random.Random(seed), kills
        self._over = threading.Event()

    def round_started(self, number: int, selected: list[str]) -> None:
        del selected
        if number == 1:
            threading.Thread(target=self._kill, daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _kill(self) -> None:
        while self.killed < self._kills and not self._over.is_set():
            time.sleep(self._rng.uniform(0.05, 0.6))
            workers = [each for each in multiprocessing.active_children() if each.name.startswith("worker-")]
            if workers:
                os.kill(self._rng.choice(workers).pid or 0, signal.SIGKILL)
                self.killed += 1


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.matrix)])
def test_workers_that_are_killed_cost_no_bit(system, embedded: BrokerAddress, kills: int) -> None:
    config = system.config("fedbiad", rounds=4 * kills, quorum=1.0, exact_sums=True)
    quiet = system.run(config, system.agents(), embedded)
    killers: list[Killer] = []

    def observer(_: object) -> Observer:
        killers.append(Killer(kills, kills))
        return killers[0]

    try:
        disturbed = system.run(config, system.agents(), embedded, observer=observer, workers=2)
    finally:
        killers[0].close()
    assert killers[0].killed == kills, "the run was over before workers were killed often enough"
    assert_alike(quiet, disturbed)


def test_a_coordinator_that_is_killed_goes_on_with_other_workers(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    options = ["--rounds=12", "--clients-per-round=3", "--quorum=1", "--local-steps=5", "--seed=7", "--exact-sums"]
    config = system.config(rounds=12, quorum=1.0, exact_sums=True, rollback=3.0)
    root, serve = tmp_path / "run", [sys.executable, "-m", "edge_fl", "serve", "--broker", str(embedded)]
    quiet = system.run(config, system.agents(), embedded)
    with system.fleet(system.agents(), embedded) as fleet:
        begin = [*serve, str(digits_bundle.root), *options, f"--output={root}", "--workers=2"]
        with subprocess.Popen(begin, stderr=subprocess.DEVNULL) as process:
            until_round(root, 3, process)
            process.kill()
        assert len(metrics_of(root)) < 12
        subprocess.run([*serve, f"--resume={root}", "--workers=1"], check=True, stderr=subprocess.DEVNULL)
        fleet.wait(timeout=120)
    assert [metrics.uplink.keys() for metrics in metrics_of(root)] == [each.uplink.keys() for each in quiet.rounds]
    assert same_weights(quiet.weights, root / "weights.safetensors")


class Stranger(Observer):
    """Sends a worker what belongs nowhere, as each round begins."""

    def __init__(self, address: BrokerAddress) -> None:
        self._connection = Connection(address=address, client_id="stranger", subscriptions=["nothing"])
        self._connection.open(timeout=10)
        self._topics = Topics()

    def round_started(self, number: int, selected: list[str]) -> None:
        del number, selected
        up = self._topics.up("client-0", "1")
        for topic in (
            self._topics.chunk(up, "0" * 64, 0),
            f"{up}/chunk/nonsense/0",
            self._topics.chunk(up, "f" * 64, 9),
        ):
            self._connection.publish(topic, b"x" * (CHUNK_SIZE + 1))


def test_what_a_stranger_sends_a_worker_costs_nothing_but_itself(system, embedded: BrokerAddress) -> None:
    config = config_of(system, "rows", exact_sums=True)
    alone = system.run(config, system.agents(), embedded)
    disturbed = system.run(config, system.agents(), embedded, observer=lambda _: Stranger(embedded), workers=1)
    assert_alike(alone, disturbed)
    assert sum(metrics.rejections.get("topic", 0) for metrics in disturbed.rounds) >= 1


def test_more_workers_than_there_may_be_are_refused(system, embedded: BrokerAddress) -> None:
    with pytest.raises(ConfigError, match="0 to 64 workers, not 65"):
        system.run(config_of(system, "rows"), [], embedded, workers=65)


@pytest.mark.matrix
def test_workers_that_cannot_reach_the_broker_say_so(
    system, embedded: BrokerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = BrokerAddress("127.0.0.1", 1)
    monkeypatch.setattr("broker.session.worker_address", lambda _address, _number: elsewhere)
    with pytest.raises(RunError, match=r"Worker 1 did not start: No MQTT broker answers at .*127\.0\.0\.1:1"):
        system.coordinate(config_of(system, "rows"), system.folder / "run", embedded, Observer(), workers=1)


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_secure_aggregation_has_the_same_bits_with_workers(system, embedded: BrokerAddress) -> None:
    config = system.config("fedbiad", rounds=2, secure=SecureAggregation(holders=2, cohort=4), samples_bound=10.0)
    assert_alike(
        system.run(config, system.agents(), embedded),
        system.run(config, system.agents(), embedded, workers=2),
    )


@pytest.mark.matrix
def test_buffered_rounds_count_what_workers_take_in(system, embedded: BrokerAddress) -> None:
    config = system.config("fedbiad", rounds=12, clients=4, buffer=2, local_steps=20, exact_sums=True)
    done = system.run(config, system.agents(4), embedded, workers=2)
    assert len(done.rounds) == 12
    assert all(len(metrics.uplink) >= 2 for metrics in done.rounds)
    assert not any(metrics.rejections for metrics in done.rounds)
