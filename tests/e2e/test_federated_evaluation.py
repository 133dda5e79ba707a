"""Devices that score the model on what they hold out, over a real broker."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.session import resume, serve
from broker.status import status_of
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.chaos import same_weights
from edge_fl.core.bundle import Bundle
from edge_fl.data.held_out import HeldOut
from edge_fl.data.registry import Samples
from edge_fl.data.sources.base import open_source
from edge_fl.runs.config import RunConfig
from edge_fl.transport.address import BrokerAddress
from tests.e2e.test_resume import PROCESSES, metrics_of

SHARE, WIDTHS = 0.25, {0: 1000, 1: 500}


def fleet_of(system, count: int = 4) -> list[AgentProcess]:
    """Half of them in each tier."""
    return [replace(agent, tier=i % 2, test_share=SHARE) for i, agent in enumerate(system.agents(count))]


def held_out(agent: AgentProcess) -> Samples:
    return HeldOut(open_source(agent.data), SHARE, agent.client).split().test


def plain_score(weights: dict[str, NDArray[np.float32]], width: int, samples: Samples) -> tuple[float, float]:
    """Loss and accuracy of the digits perceptron's first units, as one would write them in numpy."""
    hidden, units = samples.x.reshape(len(samples.y), 64).astype(np.float64), -(-width * 32 // 1000)
    for layer in ("1", "3", "5"):
        hidden = hidden @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        hidden = np.maximum(hidden, 0) * (np.arange(32) < units) if layer != "5" else hidden
    logs = hidden - np.log(np.exp(hidden).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(logs)), samples.y].mean(), (hidden.argmax(axis=1) == samples.y).mean()


def test_what_devices_find_is_the_score_of_the_final_weights_on_their_samples(
    system, embedded: BrokerAddress, tmp_path: Path
) -> None:
    agents = fleet_of(system)
    config = system.config("fjord", rounds=2, clients=4, parameters={"widths": [1000, 500]}, evaluate_on=4)
    done = system.run(config, agents, embedded)
    weights, last = load_file(done.weights), done.rounds[-1]
    assert list(last.on_devices) == [0, 1]
    for tier, found in last.on_devices.items():
        samples = [held_out(agent) for agent in agents if agent.tier == tier]
        whole = Samples(np.concatenate([s.x for s in samples]), np.concatenate([s.y for s in samples]))
        assert (found.clients, found.samples, found.width) == (2, len(whole.y), WIDTHS[tier])
        loss, accuracy = plain_score(weights, WIDTHS[tier], whole)
        assert found.loss == pytest.approx(loss, rel=1e-5)
        assert found.scores["accuracy"] == pytest.approx(accuracy)
    # Whoever evaluated a model trains it without fetching it again.
    assert last.downlink == dict.fromkeys(sorted(agent.client for agent in agents), done.dense)
    assert not any(metrics.excused or metrics.rejections for metrics in done.rounds)
    assert status_of(tmp_path / "run-1").last == last == metrics_of(tmp_path / "run-1")[-1]
    assert len([line for line in done.lines() if line.startswith("on devices of tier")]) == 2


def test_as_many_are_asked_as_were_named_after_rounds_that_are_evaluated(system, embedded: BrokerAddress) -> None:
    agents = fleet_of(system, 3)
    agents[1] = replace(agents[1], test_share=0.0)
    config = system.config("fedavg+stc", rounds=3, evaluate_on=1, evaluate_every=2)
    done = system.run(config, agents, embedded)
    asked = [sum(score.clients for score in metrics.on_devices.values()) for metrics in done.rounds]
    assert asked == [0, 1, 1]
    assert all(score.width == 1000 for metrics in done.rounds for score in metrics.on_devices.values())
    # Models travel as changes to whoever holds one, to be evaluated as to be trained.
    assert max(done.rounds[1].downlink.values()) < 0.2 * done.dense


class Executioner(Observer):
    """Kills a device as soon as it is asked for a score."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def device(self, client: str, status: str) -> None:
        if (client, status) == ("client-1", "evaluating"):
            self._fleet.kill(client)


def test_a_device_that_is_killed_in_between_is_not_waited_for(system, embedded: BrokerAddress) -> None:
    agents = [*fleet_of(system, 3)]
    config = system.config(rounds=1, gone_after=0.5, evaluate_on=3)
    with pytest.raises(Exception, match=r"client-1.*exit code -9"):  # the fleet tells of the dead agent
        system.run(config, agents, embedded, observer=Executioner)
    (metrics,) = metrics_of(system.folder / "run-1")
    assert len(metrics.uplink) == 3
    assert sum(score.clients for score in metrics.on_devices.values()) == 2


class Suicide(Observer):
    """A coordinator that is killed as soon as the first device has that status in that round."""

    def __init__(self, number: int, status: str) -> None:
        self._place, self._round = (number, status), 0

    def round_started(self, number: int, selected: list[str]) -> None:
        self._round = number

    def device(self, client: str, status: str) -> None:
        if (self._round, status) == self._place:
            os.kill(os.getpid(), signal.SIGKILL)


def coordinate(
    bundle: Path, config: RunConfig, root: Path, address: BrokerAddress, place: tuple[int, str]
) -> None:
    watching = Suicide(*place)
    serve(bundle=Bundle.load(bundle), config=config, root=root, address=address, observer=watching)


def killed(bundle: Bundle, config: RunConfig, root: Path, address: BrokerAddress, place: tuple[int, str]) -> None:
    """Begin the run in ``root``, in a process of its own, which dies at that place."""
    process = PROCESSES.Process(target=coordinate, args=(bundle.root, config, root, address, place))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_a_coordinator_killed_while_devices_evaluate_asks_them_again_and_counts_every_update_once(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    config = system.config(rounds=3, quorum=1.0, evaluate_on=3)
    quiet = system.run(config, fleet_of(system, 3), embedded)
    root = tmp_path / "killed"
    with system.fleet(fleet_of(system, 3), embedded) as fleet:
        killed(digits_bundle, config, root, embedded, (2, "evaluating"))
        assert len(metrics_of(root)) == 1
        done = resume(root, address=embedded, observer=Observer())
        fleet.wait(timeout=120)
    assert same_weights(quiet.weights, done.weights)
    assert [m.on_devices for m in done.rounds] == [m.on_devices for m in quiet.rounds]
    assert [m.uplink for m in done.rounds] == [m.uplink for m in quiet.rounds]
