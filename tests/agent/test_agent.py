"""The agent against a coordinator driven by hand, over a real broker."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from broker.embedded import EmbeddedBroker
from edge_fl.agent.agent import Agent, AgentSettings
from edge_fl.bundle import MANIFEST, Bundle
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.downlink import follow
from edge_fl.errors import EdgeFLError, RefusedError
from edge_fl.pattern import Pattern
from edge_fl.selection import Weights
from edge_fl.transport.connection import BrokerAddress, Connected, Connection, Message
from edge_fl.transport.transfer import Sender, cut, ref_of
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import (
    Failed,
    Finished,
    FromDevice,
    Offer,
    Ref,
    Refused,
    Register,
    Registered,
    Task,
    ToDevice,
    Topics,
    Want,
    decode_from_device,
    encode_message,
)

CLIENT, RUN = "client-1", "run-1"
TOPICS = Topics()


class Stage:
    """An agent on a thread, and the coordinator's end of the conversation."""

    def __init__(self, bundle: Bundle, address: BrokerAddress, folder: Path) -> None:
        up = TOPICS.up("+")
        self._connection = Connection(
            address=address, client_id="coordinator", subscriptions=[up, f"{up}/chunk/#"]
        )
        self._connection.open(timeout=5)
        assert isinstance(self._connection.next(5), Connected)
        self._sender = Sender(self._connection.publish, TOPICS.chunk)
        files = [MANIFEST, *bundle.manifest.program_files("onnx")]
        self._contents = {ref_of(bundle.read(name)).digest: bundle.read(name) for name in files}
        self.manifest = ref_of(bundle.read(MANIFEST))
        self.heard: list[FromDevice] = []
        settings = AgentSettings(broker=address, client=CLIENT, state=folder / "state", once=True)
        self.agent = Agent(settings, client_samples(DataSpec.parse("digits:0/10")))
        self.ended: list[EdgeFLError | None] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.agent.run()
            self.ended.append(None)
        except EdgeFLError as error:
            self.ended.append(error)

    def say(self, message: ToDevice) -> None:
        self._connection.publish(TOPICS.down(CLIENT), encode_message(message))

    def until(self, done: Callable[[], bool], *, limit: float = 10) -> None:
        end = time.monotonic() + limit
        while not done():
            assert time.monotonic() < end, self.heard
            event = self._connection.next(0.05)
            if isinstance(event, Message) and TOPICS.parse(event.topic)[2] is None:
                message = decode_from_device(event.payload)
                self.heard.append(message)
                if isinstance(message, Want) and message.digest in self._contents:
                    self._sender.serve(TOPICS.down(CLIENT), cut(self._contents[message.digest]), message)

    def hears(self, kind: type[FromDevice], count: int = 1, *, limit: float = 10) -> None:
        self.until(lambda: sum(isinstance(m, kind) for m in self.heard) >= count, limit=limit)

    def join(self) -> None:
        """Register the device and let it fetch the bundle."""
        self.hears(Register)
        self.say(Registered(RUN, self.manifest))
        self.until(lambda: {m.digest for m in self.heard if isinstance(m, Want)} >= set(self._contents))

    def task(self, **changes: object) -> Task:
        fields: dict[str, object] = {
            "run": RUN,
            "round": 1,
            "accepted": 0,
            "model": Ref("0" * 64, 10),
            "method": "fedavg",
            "parameters": {},
            "steps": 1,
            "batch": 20,
            "lr": 0.1,
            "seed": 0,
        }
        return Task(**{**fields, **changes})  # type: ignore[arg-type]

    def give(self, content: bytes) -> Ref:
        """Serve this content, too, to whoever wants it."""
        ref = ref_of(content)
        self._contents[ref.digest] = content
        return ref

    def offered(self, number: int) -> None:
        """Wait for the update of this round."""
        self.until(lambda: any(isinstance(m, Offer) and m.round == number for m in self.heard))

    def wanted(self, ref: Ref) -> bool:
        return any(isinstance(m, Want) and m.digest == ref.digest for m in self.heard)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def stage(digits_bundle: Bundle, tmp_path: Path) -> Iterator[Stage]:
    with EmbeddedBroker(port=0) as broker:
        stage = Stage(digits_bundle, broker.address, tmp_path)
        yield stage
        if not stage.ended:
            stage.say(Registered(RUN, stage.manifest))
            stage.say(Finished(RUN, 1))
            stage.until(lambda: bool(stage.ended))
        stage.close()


def test_an_unanswered_registration_is_repeated(stage: Stage) -> None:
    stage.hears(Register, 2, limit=8)


def test_the_end_of_another_run_is_not_its_own(stage: Stage) -> None:
    stage.join()
    stage.say(Finished("run-2", 9))
    stage.say(stage.task(run="run-2"))
    stage.say(stage.task())
    stage.until(lambda: Want("0" * 64, (0,)) in stage.heard)  # it goes on with the task of its own run
    assert not stage.ended
    stage.say(Finished(RUN, 1))
    stage.until(lambda: bool(stage.ended))
    assert stage.ended == [None]


def test_a_task_of_an_earlier_round_is_a_latecomer(stage: Stage) -> None:
    stage.join()
    newer = stage.task(round=5, model=ref_of(b"newer"))
    stage.say(newer)
    stage.until(lambda: stage.wanted(newer.model))
    stage.say(stage.task(round=4))
    stage.say(stage.task(round=5, model=ref_of(b"again")))  # another attempt at the same round
    stage.until(lambda: stage.wanted(ref_of(b"again")))
    assert not stage.wanted(stage.task().model)


def test_a_refusal_in_the_middle_of_a_task_ends_it(stage: Stage) -> None:
    stage.join()
    stage.say(stage.task())
    stage.until(lambda: Want("0" * 64, (0,)) in stage.heard)
    stage.say(Refused("profile", "It registers 0 samples."))
    stage.until(lambda: bool(stage.ended))
    assert isinstance(stage.ended[0], RefusedError)


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("10000000000 bytes", {"model": Ref("0" * 64, 10**10)}),
        ("fewer than its own prelude", {"model": ref_of(b"")}),
    ],
)
def test_a_task_that_cannot_be_done_is_told(stage: Stage, reason: str, changes: dict[str, object]) -> None:
    stage.join()
    stage.say(stage.task(**changes))
    stage.hears(Failed)
    (failed,) = [message for message in stage.heard if isinstance(message, Failed)]
    assert reason in failed.reason
    assert not stage.ended


def frame(bundle: Bundle, kind: str, version: int, weights: Weights, **header: object) -> bytes:
    """A model or a change, of all units unless ``kept`` says otherwise."""
    pattern = header.pop("kept", Pattern.full(bundle.layout))
    fields = {"run": RUN, "round": version + 1, "version": version, "layout": "", "method": "fedavg", **header}
    return encode_frame(Header(kind=kind, **fields), pattern, weights)  # type: ignore[arg-type]


def test_a_device_fetches_the_changes_since_its_model_and_those_alone(digits_bundle: Bundle, stage: Stage) -> None:
    weights = digits_bundle.weights()
    models = [frame(digits_bundle, "model", 0, weights)]
    small = {name: 0.01 * tensor for name, tensor in weights.items()}
    changes = [frame(digits_bundle, "change", version, small) for version in (1, 2)]
    models += [follow(models[0], changes[:n], digits_bundle.layout) for n in (1, 2)]
    stage.join()
    stage.say(stage.task(model=stage.give(models[0]), changes=()))
    stage.offered(1)
    stage.say(stage.task(round=2, model=ref_of(models[1]), since=0, changes=(stage.give(changes[0]),)))
    stage.offered(2)
    both = (ref_of(changes[0]), stage.give(changes[1]))  # it has followed the first: it holds a later model
    stage.heard.clear()
    stage.say(stage.task(round=3, model=ref_of(models[2]), since=0, changes=both))
    stage.offered(3)
    assert not stage.wanted(both[0])
    assert not stage.wanted(ref_of(models[2]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"kind": "update"},
        {"kept": 500},
        {"run": "another"},
        {"factor": 2.0},
        {},
    ],
    ids=str,
)
def test_changes_that_lead_elsewhere_are_given_up_for_the_model(
    digits_bundle: Bundle, stage: Stage, wrong: dict[str, object]
) -> None:
    weights = digits_bundle.weights()
    first = frame(digits_bundle, "model", 0, weights)
    small = {name: np.float32(0.01) * tensor for name, tensor in weights.items()}
    model = follow(first, [frame(digits_bundle, "change", 1, small)], digits_bundle.layout)
    fields: dict[str, object] = {"kind": "change", "version": 1, "weights": small, **wrong}
    if "factor" in fields:
        fields["weights"] = {name: fields["factor"] * tensor for name, tensor in small.items()}
        del fields["factor"]
    if "kept" in fields:
        fields["kept"] = Pattern.prefix(digits_bundle.layout, 500)
    change = frame(digits_bundle, **fields) if wrong else b"no frame at all"  # type: ignore[arg-type]
    stage.join()
    stage.say(stage.task(model=stage.give(first), changes=()))
    stage.offered(1)
    stage.say(stage.task(round=2, model=stage.give(model), since=0, changes=(stage.give(change),)))
    stage.offered(2)
    assert stage.wanted(ref_of(model))


def test_a_change_is_not_trained_on_as_a_model(digits_bundle: Bundle, stage: Stage) -> None:
    stage.join()
    change = frame(digits_bundle, "change", 0, digits_bundle.weights())
    stage.say(stage.task(model=stage.give(change)))
    stage.hears(Failed)
    assert "is a change, not a model" in next(m.reason for m in stage.heard if isinstance(m, Failed))
