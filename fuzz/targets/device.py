"""A device, against a coordinator that sends anything in any order: it may be refused, and nothing else ends it."""

import os
import shutil
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from edge_fl.agent import conversation
from edge_fl.agent.agent import Agent, AgentSettings
from edge_fl.agent.opening import in_this_process
from edge_fl.core.bundle import MANIFEST, Bundle
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import DataError, RefusedError, RuntimeMissingError
from edge_fl.core.pattern import Pattern
from edge_fl.data.sources.base import open_source
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.interface import Connected, Disconnected, Event, Message
from edge_fl.transport.transfer import chunks_of, cut
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import (
    Clipping,
    CollectStatistics,
    Evaluate,
    Final,
    Finished,
    Hello,
    Offer,
    Refused,
    Registered,
    Task,
    ToDevice,
    Topics,
    Verdict,
    Want,
    decode_from_device,
    encode_message,
)
from fuzz.campaign import BUNDLE
from fuzz.target import Draws, Exhausted, Prepared
from fuzz.targets.files import folder

__all__ = ["device"]

_RUN, _CLIENT = "run-1", "a"
_TOPICS = Topics()
_DOWN = _TOPICS.down(_CLIENT)


class _Scene:
    """Contents that a coordinator may give out, good and bad."""

    def __init__(self) -> None:
        bundle = Bundle.load(Path(os.environ[BUNDLE]))
        manifest = bundle.read(MANIFEST)
        full = Pattern.full(bundle.layout)
        header = Header("model", run=_RUN, round=1, version=0, layout="", method="fedavg")
        model = encode_frame(header, full, bundle.weights())
        wrong = {t.name: np.zeros(t.shape, np.float32) for t in bundle.layout.tensors}
        change = encode_frame(msgspec.structs.replace(header, kind="change", round=2, version=1), full, wrong)
        alien = msgspec.json.decode(manifest)
        alien["programs"]["onnx"][0]["inputs"] = ["x"]
        self.manifests = [manifest, manifest, b"{}", msgspec.json.encode(alien), b""]
        self.models = [model, model, change, model[:-4], b"no frame"]
        programs = [bundle.read(file) for file in bundle.manifest.program_files("onnx")]
        self.contents = {ref_of(each).digest: each for each in (*self.manifests, *self.models, *programs)}
        self.source = open_source("digits:0/50")
        self.state = folder()


class _Session:
    """The transport of one device: the next event is drawn when the device asks for it."""

    def __init__(self, scene: _Scene, draws: Draws) -> None:
        self._scene, self._draws = scene, draws
        self._events: deque[Event] = deque([Connected()])
        self._offer: Offer | None = None
        self._last: Event = Connected()

    def open(self, *, timeout: float) -> None:
        """There at once."""

    def close(self) -> None:
        """Nothing is held."""

    def publish(self, topic: str, payload: bytes) -> Callable[[], bool]:
        """Answer what a device must have to go on, unless the case says otherwise."""
        if _TOPICS.parse(topic)[2] is None:
            message = decode_from_device(payload)  # a device says nothing that a coordinator cannot read
            if isinstance(message, Want):
                self._give(message)
            elif isinstance(message, Offer):
                self._offer = message
        return lambda: True

    def _give(self, want: Want) -> None:
        content = self._scene.contents.get(want.digest)
        for index, chunk in chunks_of(cut(content), want) if content else ():
            self._events.append(Message(_TOPICS.chunk(_DOWN, want.digest, index), chunk))

    def next(self, timeout: float) -> Event:
        """What comes next; raises Exhausted at the end of the case."""
        del timeout
        self._last = self._events.popleft() if self._events else self._drawn()
        return self._last

    def _drawn(self) -> Event:
        draws = self._draws
        match draws.byte() % 8:
            case 0:
                return draws.pick([Connected(), Disconnected("lost"), self._last])
            case 1:
                body = draws.bytes()
                topic = draws.pick([_DOWN, _TOPICS.all, "", _TOPICS.chunk(_DOWN, "0" * 64, 0)])
                return Message(topic, draws.pick([body, crc32(body).to_bytes(4, "little") + body]))
            case _:
                return Message(draws.pick([_DOWN, _DOWN, _TOPICS.all]), encode_message(self._message()))

    def _message(self) -> ToDevice:
        draws = self._draws
        kinds: tuple[type[Any], ...] = (
            Registered,
            Registered,
            Task,
            Task,
            Task,
            Verdict,
            Verdict,
            Evaluate,
            CollectStatistics,
            Want,
            Finished,
            Final,
            Hello,
            Refused,
        )
        kind = draws.pick(kinds)
        fields: dict[str, Callable[[], Any]] = {
            "run": lambda: draws.pick([_RUN, _RUN, _RUN, "run-2"]),
            "round": lambda: draws.pick([1, 2, 3, 0, 2**31 - 1]),
            "rounds": draws.byte,
            "accepted": lambda: draws.pick([0, 1, 2, 2**31 - 1]),
            "manifest": lambda: ref_of(draws.pick(self._scene.manifests)),
            "model": self._model,
            "method": lambda: draws.pick(["fedavg", "fedbiad", "fedavg+dgc", "fjord+kd", "none", "a+b+c"]),
            "parameters": lambda: draws.pick([{}, {"dropout": [500]}, {"dgc.ratio": 0.5}, {"x": draws.number()}]),
            "steps": lambda: 1 + draws.byte() % 3,
            "batch": lambda: draws.pick([20, 20, 1, 1 << 20]),
            "lr": lambda: draws.pick([0.1, 0.0, 1e9]),
            "seed": lambda: draws.pick([0, 2**63 - 1]),
            "tier": lambda: draws.byte() % 64,
            "mask": lambda: draws.pick(["bitmask", "prefix", "seed"]),
            "pattern": lambda: draws.pick([b"", b"", draws.bytes()]),
            "changes": lambda: draws.pick([None, None, (), (self._model(),)]),
            "clipping": lambda: draws.pick(
                [
                    msgspec.UNSET,
                    msgspec.UNSET,
                    Clipping(0.5, tell=True),
                    Clipping(1e9, 1e12),
                    Clipping(1e-300, 1.0),
                ]
            ),
            "since": draws.byte,
            "width": lambda: draws.pick([1000, 500, 1]),
            "statistics": lambda: draws.pick([1000, 500, 1]),
            "scores": lambda: draws.pick([(), ("accuracy",), ("macro-f1", "r2"), ("file.py:f",)]),
            "digest": lambda: self._offer.update.digest if self._offer else "0" * 64,
            "chunks": lambda: tuple(range(draws.byte() % 65)),
            "code": lambda: "code",
            "reason": lambda: draws.pick(["", "\x1b[2J\n"]),
        }
        chosen = {f.name: fields[f.name]() for f in msgspec.structs.fields(kind) if f.name in fields}
        if kind is Verdict:
            chosen["accepted"] = draws.byte() % 2 == 0
        made: ToDevice = kind(**chosen)
        return made

    def _model(self) -> Ref:
        return ref_of(self._draws.pick(self._scene.models))


def device() -> Prepared:
    """A device's life a case; its bundle is there already where the case before fetched it."""
    scene = _Scene()
    settings = AgentSettings(
        broker=BrokerAddress("localhost", 1),
        client=_CLIENT,
        state=scene.state,
        test_share=0.2,
        keep_model=True,
    )

    def run(data: bytes) -> None:
        draws = Draws(data)
        setattr(conversation, "Connection", lambda **_: _Session(scene, draws))  # noqa: B010  (mypy forbids more)
        shutil.rmtree(scene.state / "method", ignore_errors=True)
        with suppress(Exhausted, RefusedError, RuntimeMissingError, DataError):
            Agent(settings, scene.source, open=in_this_process()).run()

    return Prepared(run, [bytes([2, 0, 0, k, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0] * 6) for k in range(4)])
