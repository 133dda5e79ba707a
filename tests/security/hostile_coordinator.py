"""A coordinator gone bad: it has the fleet's key, and gives out what no coordinator may."""

import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import onnx
from onnx import TensorProto

from broker.envelope import SignedEnvelope
from edge_fl.core.bundle import MANIFEST, Bundle
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Message
from edge_fl.transport.transfer import Sender, cut
from edge_fl.wire.messages import (
    AggregationRequest,
    Failed,
    FromDevice,
    Hello,
    Keys,
    Offer,
    Register,
    Registered,
    Shares,
    Task,
    ToDevice,
    Topics,
    Unmasked,
    Want,
)
from tests.agent.stage import frame

TOPICS = Topics()
Asked = Task | AggregationRequest
Heard = TypeVar("Heard", Offer, Keys, Shares, Unmasked, Failed)


class HostileCoordinator:
    """Signs as the fleet's coordinator, and serves whatever it is told to."""

    def __init__(self, address: BrokerAddress, identity: Path) -> None:
        up = TOPICS.up("+")
        self._old, self._envelope = SignedEnvelope(identity), SignedEnvelope(identity)
        self._envelope._signer.epoch = self._old.epoch + 1
        self._connection = Connection(
            address=address, client_id="coordinator-x", subscriptions=[up, f"{up}/chunk/#"]
        )
        self._sender = Sender(self._connection.publish, TOPICS.chunk)
        self._contents: dict[str, bytes] = {}
        self.heard: list[tuple[str, FromDevice]] = []

    def __enter__(self) -> "HostileCoordinator":
        self._connection.open(timeout=60)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._connection.close()

    def give(self, content: bytes) -> Ref:
        """Give out this content to whoever wants it."""
        ref = ref_of(content)
        self._contents[ref.digest] = content
        return ref

    def say(self, client: str, message: ToDevice | dict[str, Any], *, old: bool = False) -> None:
        topic = TOPICS.all if client == "all" else TOPICS.down(client)
        sealed = (self._old if old else self._envelope).seal(topic, message)  # type: ignore[arg-type]
        self._connection.publish(topic, sealed)

    def until(self, done: Callable[[], bool], limit: float = 120) -> None:
        end = time.monotonic() + limit
        while not done():
            assert time.monotonic() < end, self.heard[-5:]
            self.pump()

    def pump(self) -> None:
        event = self._connection.next(0.05)
        self._sender.advance()
        if not isinstance(event, Message):
            return
        _, client, chunk = TOPICS.parse(event.topic)
        if chunk is not None:
            return
        try:
            message = self._envelope.open(event.topic, client, event.payload)
        except FrameError:  # said before it registered
            self.say("all", Hello("hostile"))
            return
        self.heard.append((client, message))
        if isinstance(message, Want) and message.digest in self._contents:
            self._sender.serve(TOPICS.down(client), cut(self._contents[message.digest]), message)

    def gather(self, *clients: str) -> None:
        """Call the devices until these have registered."""
        self.say("all", Hello("hostile"))
        self.until(lambda: {c for c, m in self.heard if isinstance(m, Register)} >= set(clients))

    def ask(self, client: str, request: Asked, kind: type[Heard], sentence: str = "") -> Heard:
        """Say it, and again, until ``client`` answers by a message of that kind; a failure has the ``sentence``."""
        began, told = len(self.heard), 0.0

        def answers() -> list[Heard]:
            said = [
                m for c, m in self.heard[began:] if c == client and isinstance(m, kind) and m.run == request.run
            ]
            return [m for m in said if sentence in getattr(m, "reason", "")]

        def answered() -> bool:
            nonlocal told
            if time.monotonic() > told + 5:
                self.say(client, request)
                told = time.monotonic()
            return bool(answers())

        self.until(answered)
        return answers()[0]

    def fails(self, client: str, run: str, bundle: Bundle, manifest: bytes, sentence: str, **changes: Any) -> None:
        """Have ``client`` train with a manifest, and give this reason for not doing so."""
        self.say(client, Registered(run, self.give(manifest)))
        model = self.give(frame(bundle, "model", 0, bundle.weights(), run=run))
        self.ask(client, task_of(run, model, **changes), Failed, sentence)


def task_of(run: str, model: Ref, **changes: Any) -> Task:
    fields = {"run": run, "round": 1, "accepted": 0, "model": model, "method": "fedavg", "parameters": {}}
    return Task(**{**fields, "steps": 1, "batch": 20, "lr": 0.1, "seed": 0, "tier": 0, **changes})


def out_of_range(run: str) -> Iterator[dict[str, Any]]:
    """What no message class holds, as the wire has it: a device is to ignore all of it."""
    task: dict[str, Any] = {"type": "task", **msgspec.to_builtins(task_of(run, Ref("1" * 64, 9)))}
    for changes in ({"batch": 2**31}, {"steps": 2**62}, {"round": 2**40}, {"tier": 2**63}, {"lr": float("nan")}):
        yield task | changes
    yield task | {"model": {"digest": "1" * 64, "size": 2**62}}
    yield task | {"run": "../../../etc"}
    rehearsal = {name: value for name, value in task.items() if name != "type"}
    manifest = msgspec.to_builtins(Ref("1" * 64, 9))
    yield {"type": "registered", "run": run, "manifest": manifest, "rehearsals": [rehearsal] * 1000}
    yield {"type": "want", "digest": "1" * 64, "chunks": list(range(100_000))}
    yield {"type": "unmask", "run": run, "round": 1, "attempt": 1, "survivors": [f"c{i}" for i in range(1000)]}
    yield {"type": "gone"}


def no_manifest(_bundle: Bundle) -> bytes:
    return b"[" * 100_000


def of_a_huge_layout(bundle: Bundle) -> bytes:
    """A layout of which 2^40 entries are asked, and which is of one piece."""
    manifest, size = json.loads(bundle.read(MANIFEST)), bundle.layout.blocks[0].size

    def grown(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: grown(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [grown(inner) for inner in value]
        return 2**40 if value == size else value

    return json.dumps(manifest | {"layout": grown(manifest["layout"])}).encode()


def lacking_a_tensor(bundle: Bundle, runtime: str) -> bytes:
    """Whose step says nothing of one tensor of the layout."""
    manifest = json.loads(bundle.read(MANIFEST))
    for program in manifest["programs"][runtime]:
        gone = f"tensor.{bundle.layout.tensors[0].name}"
        program["inputs"] = [name for name in program["inputs"] if name != gone]
        program["outputs"] = [name for name in program["outputs"] if name != f"new.{gone}"]
    return json.dumps(manifest).encode()


def reading_a_file(program: bytes) -> bytes:
    """An ONNX program, one of whose tensors is in the device's state folder."""
    model = onnx.load_from_string(program)
    tensor = TensorProto(name="stolen", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../identity.json")
    model.graph.initializer.append(tensor)
    return model.SerializeToString()


class _Evil:
    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


def with_a_pickle(program: bytes, evil: Path) -> bytes:
    """A torch program whose example inputs, unpickled, make the file ``evil``."""
    import torch

    pickled, made = io.BytesIO(), io.BytesIO()
    torch.save((_Evil(evil),), pickled)
    with zipfile.ZipFile(io.BytesIO(program)) as before, zipfile.ZipFile(made, "w") as after:
        for name in before.namelist():
            after.writestr(name, pickled.getvalue() if "sample_inputs" in name else before.read(name))
    return made.getvalue()
