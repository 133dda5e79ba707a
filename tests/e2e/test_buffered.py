"""Buffered asynchronous rounds over a real broker."""

import signal
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from broker.observer import Observer
from broker.update_file import UpdateFile
from broker.uploads import Uploads
from device_sim.emulation.agent_processes import Fleet
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.errors import ConfigError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.transfer import cut
from edge_fl.wire.messages import Want
from tests.e2e.test_resume import coordinator_ends_with, metrics_of


def of_buffer(rounds: list[RoundMetrics] | tuple[RoundMetrics, ...], buffer: int) -> None:
    """What holds of every round."""
    for metrics in rounds:
        assert len(metrics.uplink) >= buffer
        assert metrics.stale.keys() <= metrics.uplink.keys() <= metrics.tiers.keys()
        assert all(0 < late < metrics.round for late in metrics.stale.values())


class Pauser(Observer):
    """Stops a device as soon as it is asked, until two rounds were closed without it; then all wait for it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._closed, self._asked, self._heard = fleet, 0, False, False

    def device(self, client: str, status: str) -> None:
        if (client, status, self._asked) == ("client-3", "training", False):
            self._asked = True
            self._fleet.signal("client-3", signal.SIGSTOP)
        self._heard |= (client, status) == ("client-3", "accepted")

    def round_closed(self, metrics: RoundMetrics) -> None:
        self._closed += 1
        if self._closed == 2:
            self._fleet.signal("client-3", signal.SIGCONT)
        if self._closed >= 2 and not self._heard:
            time.sleep(2)  # else the run might be over before a busy machine has it train


@pytest.mark.parametrize("method", ["fedbiad+dgc", pytest.param("fjord", marks=pytest.mark.matrix)])
def test_rounds_close_without_those_who_still_train_and_count_them_later(
    system, embedded: BrokerAddress, method: str
) -> None:
    config = system.config(method, rounds=15, clients=4, buffer=2, local_steps=20)
    done = system.run(config, system.agents(4), embedded, observer=Pauser)
    assert len(done.rounds) == 15
    of_buffer(done.rounds, 2)
    assert max(metrics.stale.get("client-3", 0) for metrics in done.rounds) >= 2
    assert not any(metrics.excused or metrics.rejections for metrics in done.rounds)
    first, *_, last = (metrics.loss for metrics in done.rounds)
    assert first is not None
    assert last is not None
    assert last < first  # which update comes when is the machine's: no more can be said


class Rebooter(Observer):
    """Kills a device as soon as it is asked, and starts it again once the round gave it up."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.killed = fleet, False

    def round_started(self, number: int, selected: list[str]) -> None:
        if "client-1" in selected and not self.killed:
            self.killed = True
            self._fleet.kill("client-1")
            threading.Timer(2.0, self._fleet.start, ["client-1"]).start()


def test_one_that_is_lost_is_asked_again_where_nobody_else_is(system, embedded: BrokerAddress) -> None:
    """With as many devices as a round needs updates it cannot be closed without."""
    config = system.config(rounds=3, clients=3, buffer=3, gone_after=0.1)
    done = system.run(config, system.agents(3), embedded, observer=Rebooter)
    assert all(metrics.uplink.keys() == {"client-0", "client-1", "client-2"} for metrics in done.rounds)


def test_an_upload_goes_on_over_the_rounds_that_close_meanwhile(tmp_path: Path) -> None:
    wants: list[tuple[str, Want]] = []
    file = UpdateFile(tmp_path / "updates" / "buffer.frames", 1 << 20)
    uploads = Uploads(lambda client, want: wants.append((client, want)), lambda c, ref: file.place(c, ref.size))
    content = bytes(range(256)) * 3000  # three chunks
    for client in ("slow", "gone"):
        uploads.offer(client, ref_of(content))
    assert uploads.chunk("slow", ref_of(content).digest, 0, cut(content)[0]) is None
    uploads.clear(besides=["slow"])
    uploads.offer("slow", ref_of(content))  # again, as devices do
    assert uploads.chunk("gone", ref_of(content).digest, 0, cut(content)[0]) is None
    assert uploads.chunk("slow", ref_of(content).digest, 1, cut(content)[1]) is None
    assert uploads.chunk("slow", ref_of(content).digest, 2, cut(content)[2]) == content
    assert [client for client, _ in wants] == ["slow", "gone"]


def test_a_killed_coordinator_goes_on_and_counts_nothing_twice(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    config: RunConfig = system.config("fedbiad", rounds=12, clients=4, buffer=2)
    root = tmp_path / "killed"
    with system.fleet(system.agents(4), embedded) as fleet:
        for lives in (12, 25, 31, 44):
            code = coordinator_ends_with(digits_bundle.root, config, root, embedded, lives)
            assert code == -signal.SIGKILL
        assert coordinator_ends_with(digits_bundle.root, config, root, embedded, None) == 0
        fleet.wait(timeout=120)
    ended = metrics_of(root)
    assert [metrics.round for metrics in ended] == list(range(1, 13))
    of_buffer(ended, 2)
    trained = Counter(
        (client, metrics.round - metrics.stale.get(client, 0)) for metrics in ended for client in metrics.uplink
    )
    assert max(trained.values()) == 1  # no task brought two updates


@pytest.mark.parametrize("recipe", ["fedavg+stc", "fedavg+tcs"])
def test_what_every_device_must_know_of_every_round_is_refused(
    system, embedded: BrokerAddress, recipe: str
) -> None:
    with pytest.raises(ConfigError, match="leave --buffer out"):
        system.run(system.config(recipe, clients=2, buffer=1), [], embedded)


def test_a_buffer_that_never_fills_is_refused(system) -> None:
    with pytest.raises(ConfigError, match="never fills while 2 clients"):
        msgspec.structs.replace(system.config(clients=2), buffer=3)
