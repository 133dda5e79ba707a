"""Worker processes and what leads them, over a real broker, with hand-made devices."""

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.embedded import EmbeddedBroker
from broker.update_file import UpdateFile
from broker.workers import pool
from broker.workers.jobs import Fetch, Fetched, Ready, Rejected, Start, Wants
from broker.workers.pool import Said, Taken, Workers
from device_sim.emulation.crowd import ReadyUpdates
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.errors import RunError
from edge_fl.recipes.recipe import open_recipe
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.wire.messages import Task, Topics

SECONDS = 60.0


class House:
    """Workers, what they say, and a device that publishes what it likes."""

    def __init__(self, bundle: Bundle, address: BrokerAddress, folder: Path) -> None:
        self.bundle, self.recipe, self.said = bundle, open_recipe("fedavg", {}), queue.SimpleQueue[Said]()
        self.start = Start(1, "r", bundle.root, "fedavg", {}, (), address, "edge-fl", 10.0, holds=True)
        self.workers = Workers([self.start], self.said.put)
        self.file = UpdateFile(folder / "updates" / "1.frames", 1 << 20)
        self._device = Connection(address=address, client_id="device", subscriptions=["nothing"])
        self._device.open(timeout=10)

    def close(self) -> None:
        self.workers.close()
        self._device.close()

    def update(self, client: str = "a") -> bytes:
        (chunk,) = ReadyUpdates(self.bundle.layout, self.recipe, "r").make(client, 1).chunks
        return bytes(chunk)

    def fetch(self, content: bytes, client: str = "a", *, flush: bool = True, **changes: object) -> None:
        job = Fetch(
            client=client,
            ref=ref_of(content),
            path=self.file.path,
            offset=self.file.offset(client),
            task=Task("r", 1, 0, ref_of(b"model"), "fedavg", {}, 1, 20, 0.1, 0, 0),
            version=0,
            samples=1000,
            max_change=1000.0,
            shared=b"",
        )
        self.workers.fetch(replace(job, **changes))
        if flush:
            self.workers.flush()

    def wanted(self, content: bytes) -> None:
        """Wait until a worker asks for an update: what comes before that is nobody's."""
        digest = ref_of(content).digest
        while True:
            answer = self.next(Wants).answer
            if isinstance(answer, Wants) and answer.missing.digest == digest:
                return

    def send(self, content: bytes, client: str = "a", label: bytes | None = None) -> None:
        topics, digest = Topics(), ref_of(content if label is None else label).digest
        self._device.publish(topics.chunk(topics.up(client, "1"), digest, 0), content)

    def next(self, kind: type) -> Said:
        """What a worker says next of this kind, not yet looked at."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            said = self.said.get(timeout=SECONDS)
            if isinstance(said.answer, kind):
                return said
        raise AssertionError(f"no {kind.__name__} came")

    def taken(self) -> Taken:
        """What comes of the next update that is whole, or given up."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for answer in self.workers.heard(self.said.get(timeout=SECONDS)):
                if isinstance(answer, Taken):
                    return answer
        raise AssertionError("no update came")


@pytest.fixture
def house(digits_bundle: Bundle, tmp_path: Path) -> Iterator[House]:
    with EmbeddedBroker(port=0) as broker:
        made = House(digits_bundle, broker.address, tmp_path)
        yield made
        made.close()


def test_an_update_offered_again_as_it_arrives_is_judged_once_and_stays_as_it_was(house: House) -> None:
    """A device that changes its mind, and back, while the first answer is on its way."""
    content, other = house.update(), house.update()[:-5]
    house.fetch(content)
    house.wanted(content)
    house.send(content)
    stale = house.next(Fetched)
    house.fetch(other)
    house.fetch(content)
    assert house.workers.heard(stale) == []
    house.wanted(content)
    house.send(content)
    taken = house.taken()
    assert (taken.job.number, taken.fetched.code) == (3, "")
    offset = house.file.offset("a")
    assert house.file.read(offset, len(content)) == content
    house.send(content[:-5] + b"?????", label=content)  # labelled as what was accepted
    house.fetch(house.update("b"), "b")
    house.wanted(house.update("b"))
    house.send(house.update("b"), "b")
    house.taken()  # so the chunk before it has been looked at
    assert house.file.read(offset, len(content)) == content


def test_what_is_wrong_with_an_update_or_a_chunk_costs_that_alone(house: House) -> None:
    content = house.update()
    house.send(b"nobody asked for this")
    house.fetch(content, samples=1)
    house.wanted(content)
    house.send(b"short", label=content)
    rejected = house.next(Rejected).answer
    assert isinstance(rejected, Rejected)
    assert (rejected.client, rejected.code, rejected.times) == ("a", "chunk", 1)
    house.send(content)
    assert house.taken().fetched.code == "samples"
    house.fetch(content)
    house.wanted(content)
    house.send(content)
    assert house.taken().fetched.held is not None


def test_workers_that_are_killed_before_they_can_fetch_cost_no_update(house: House) -> None:
    """More often than a run outlives, and than an update is tried, but all of them within a minute."""
    content = house.update()
    house.fetch(content)
    house.wanted(content)
    for _ in range(12):
        house.workers._workers[1].process.kill()
        assert house.workers.heard(house.next(type(None))) == []
    house.wanted(content)
    house.send(content)
    assert house.taken().fetched.held is not None


def test_a_worker_that_does_not_come_up_ends_the_run(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_START_SECONDS", 0.0)
    for _ in range(11):  # one that heard devices, and ten that did not yet
        house.workers._workers[1].process.kill()
        assert house.workers.heard(house.next(type(None))) == []
    house.workers._workers[1].process.kill()
    last = house.next(type(None))
    with pytest.raises(RunError, match=r"Worker 1 ended 11 times as it started \(last with exit code -9\)"):
        house.workers.heard(last)


def test_what_a_worker_was_not_told_yet_the_next_one_is(house: House) -> None:
    content = house.update()
    house.fetch(content, flush=False)
    # The first worker ends before it was told, so four end at the update: one fewer than it is refused for.
    for _ in range(5):
        house.workers._workers[1].process.kill()
        assert house.workers.heard(house.next(type(None))) == []
        house.wanted(content)
    house.workers.forget()
    house.fetch(content, flush=False)
    house.workers.forget()
    house.fetch(house.update("b"), "b")
    house.wanted(house.update("b"))
    house.send(content)  # nobody asked for it any more
    house.send(house.update("b"), "b")
    assert house.taken().job.client == "b"


def test_a_worker_that_cannot_read_what_it_is_told_is_started_again(house: House) -> None:
    house.workers._workers[1].pipe.send_bytes(b"\xa1\xff")
    assert house.workers.heard(house.next(type(None))) == []
    content = house.update()
    house.fetch(content)
    house.wanted(content)
    house.send(content)
    assert house.taken().fetched.code == ""


def test_an_update_that_workers_end_at_is_given_up_and_workers_that_end_idly_end_the_run(house: House) -> None:
    house.fetch(house.update())
    for _ in range(5):
        house.next(Wants)
        house.workers._workers[1].process.kill()
        done = house.workers.heard(house.next(type(None)))
    (taken,) = done
    assert isinstance(taken, Taken)
    assert taken.fetched.code == "fault"
    for _ in range(5):
        house.next(Ready)
        house.workers._workers[1].process.kill()
        house.workers.heard(house.next(type(None)))
    house.next(Ready)
    house.workers._workers[1].process.kill()
    last = house.next(type(None))
    with pytest.raises(RunError, match=r"Workers ended 11 times and took in nothing"):
        house.workers.heard(last)


def test_no_worker_is_started_again_once_the_run_is_over(house: House) -> None:
    house.workers.finish()
    house.workers._workers[1].process.kill()
    assert house.workers.heard(house.next(type(None))) == []
    assert not house.workers._workers[1].process.is_alive()


def test_an_update_of_a_round_that_is_closed_is_not_fetched(house: House) -> None:
    path = house.file.path.with_name("gone.frames")
    house.fetch(house.update(), path=path)
    house.fetch(house.update("b"), "b")
    house.wanted(house.update("b"))
    house.send(house.update("b"), "b")
    assert house.taken().job.client == "b"
    assert not path.exists()
