"""The coordinator's side of the protocol, against three clients who send anything in any order."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np

from broker import gateway as module
from broker.database import local_url
from broker.gateway import Gateway
from broker.observer import Observer
from broker.rounds import Round
from broker.run_folder import RunFolder
from broker.score_round import ScoreRound
from broker.store import Store
from broker.tiers import Tiers
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.pattern import Pattern
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.transport.interface import Connected, Disconnected, Dropped, Event, Message
from edge_fl.transport.memory import MemoryBroker, MemorySession
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import (
    PROTOCOL,
    CollectedStatistics,
    Evaluate,
    Evaluated,
    Failed,
    FromDevice,
    Gone,
    Hello,
    Keep,
    Offer,
    Register,
    Task,
    Topics,
    Want,
    encode_message,
)
from fuzz.campaign import BUNDLE
from fuzz.target import Draws, Exhausted, Prepared
from fuzz.targets.files import folder

__all__ = ["gateway"]

_RUN, _ROUND, _VERSION, _SAMPLES, _MOST_DEVICES = "run-1", 4, 3, 100, 2
_JOINS: Final = bytes([8, 0, 0, 0, 0, 0, 0, 0, 0, 0])  # the first client registers
_UPLOADS: Final = bytes([8, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0])  # offers a good update, and sends it
_CLIENTS: Final = ("a", "b", "c")  # one more than may register
_TOPICS = Topics()
_CONFIG = RunConfig(
    run=_RUN,
    method="fedbiad",
    parameters={"dropout": [500]},
    rounds=9,
    clients_per_round=2,
    local_steps=1,
    batch=20,
    lr=0.1,
    seed=0,
)


class _Scene:
    """What all cases share: a bundle, a record, and updates good and bad."""

    def __init__(self) -> None:
        module._NEWCOMER_SECONDS = -1.0  # another coordinator is logged, and ends nothing
        self.bundle = Bundle.load(Path(os.environ[BUNDLE]), runtime="onnx")
        root = folder()
        self.folder = RunFolder(root / "run", _CONFIG)
        self.store = Store(local_url(root), _RUN, b"{}")
        self.recipe = open_recipe("fedbiad", {"dropout": [500]})
        self.model = self._frame(Pattern.full(self.bundle.layout), kind="model", samples=0, client="")
        kept = Pattern.seeded(self.bundle.layout, 500, 1)
        good = {client: self._frame(kept, client=client) for client in _CLIENTS}
        bad = [
            self._frame(kept, client="a", samples=_SAMPLES + 1),
            self._frame(kept, client="a", round=3),
            self._frame(kept, fill=2000.0, client="a"),
            self._frame(Pattern.full(self.bundle.layout), client="a"),
            good["a"][:-1],
            b"no frame",
        ]
        self.good = {client: ref_of(frame) for client, frame in good.items()}
        self.contents = {ref_of(frame).digest: frame for frame in (*good.values(), *bad)}
        manifest = ref_of(self.bundle.read("manifest.json"))
        invented = [Ref("0" * 64, 0), Ref("1" * 64, 2**32)]
        self.refs = [*map(ref_of, self.contents.values()), ref_of(self.model), manifest, *invented]

    def _frame(self, pattern: Pattern, *, fill: float = 0.01, **header: Any) -> bytes:
        fields = {
            "kind": "update",
            "run": _RUN,
            "round": _ROUND,
            "version": _VERSION,
            "layout": "",
            "method": "fedbiad",
            "mode": "units" if header.get("kind") == "model" else "rows",
            "samples": _SAMPLES,
            "loss": 1.0,
            **header,
        }
        values = {t.name: np.full(t.shape, fill, dtype=np.float32) for t in self.bundle.layout.tensors}
        return encode_frame(Header(**fields), pattern, values)

    def gateway(self, session: MemorySession) -> Gateway:
        return Gateway(
            bundle=self.bundle,
            recipe=self.recipe,
            batch=20,
            most_devices=_MOST_DEVICES,
            tiers=Tiers(),
            folder=self.folder,
            store=self.store,
            connection=session,
            topics=_TOPICS,
            observer=Observer(),
        )


class _Case:
    """One conversation."""

    def __init__(self, scene: _Scene, data: bytes) -> None:
        self._scene, self._draws = scene, Draws(data)
        self._session = MemoryBroker().session(())
        self._gateway = scene.gateway(self._session)
        self._round: Round | None = None

    def play(self) -> int:
        """Until the case is used up; then what was taken must be what was asked for. Returns how many were taken."""
        self._open_round()
        with suppress(Exhausted):
            while True:
                self._step()
        while self._session.events:
            self._gateway.pump()
        assert len(self._gateway.registry) <= _MOST_DEVICES
        reports = self._round.reports if self._round else {}
        for client, report in reports.items():
            assert ref_of(report.content()) == self._scene.good[client], f"a bad update of '{client}' was taken"
        return len(reports)

    def _open_round(self) -> None:
        self._round = Round(_ROUND, _VERSION, quorum=1, max_change=1000.0)
        model = self._gateway.open_round(self._round, self._scene.model)
        for client in _CLIENTS[:2]:
            task = Task(
                run=_RUN,
                round=_ROUND,
                accepted=0,
                model=model,
                method="fedbiad",
                parameters={"dropout": [500]},
                steps=1,
                batch=20,
                lr=0.1,
                seed=0,
                tier=0,
            )
            self._round.ask(client, task, 0.0)

    def _step(self) -> None:
        draws, hear = self._draws, self._session.events.append
        match draws.byte() % 16:
            case 0:
                self._gateway.close_round()
            case 1:
                self._open_round()
            case 2:
                self._open_poll()
            case 3:
                events: list[Event] = [
                    Connected(),
                    Disconnected("lost"),
                    Dropped(_TOPICS.up("a"), 3),
                    Dropped("", 1),
                ]
                hear(draws.pick(events))
            case 4:
                hear(self._odd())
            case 5 | 6 | 7:
                hear(self._chunk())
            case _:
                hear(Message(_TOPICS.up(draws.pick(_CLIENTS)), encode_message(self._message())))
        self._gateway.pump()

    def _open_poll(self) -> None:
        ask = Evaluate(_RUN, _VERSION, ref_of(self._scene.model), 1000, 1000, 20)
        tasks = dict.fromkeys(_CLIENTS[:2], ask)
        current = ScoreRound(_VERSION, dict(tasks), dict.fromkeys(tasks, 0), manifest=self._scene.bundle.manifest)
        self._gateway.polling.open(current)

    def _odd(self) -> Event:
        """What no device of ours says."""
        draws = self._draws
        topics = [_TOPICS.all, _TOPICS.up("a"), _TOPICS.up(""), _TOPICS.down("a"), "", "edge-fl/1/up/a"]
        topic, body = draws.pick(topics), draws.bytes()
        others = [encode_message(Hello("run-2")), encode_message(Hello(_RUN)), body]
        return Message(topic, draws.pick([*others, crc32(body).to_bytes(4, "little") + body]))

    def _chunk(self) -> Event:
        draws, scene = self._draws, self._scene
        ref, client = draws.pick(scene.refs), draws.pick(_CLIENTS)
        whole = scene.contents.get(ref.digest, b"")
        payload = draws.pick([whole, whole, whole, b"", whole[:-1]])
        return Message(_TOPICS.chunk(_TOPICS.up(client), ref.digest, draws.pick([0, 0, 0, 1, 10**8])), payload)

    def _message(self) -> FromDevice:
        draws = self._draws
        kinds: tuple[type[Any], ...] = (
            Register,
            Offer,
            Offer,
            Want,
            Evaluated,
            CollectedStatistics,
            Failed,
            Gone,
            Keep,
        )
        kind = draws.pick(kinds)
        if kind is Gone:
            return Gone()
        fields: dict[str, Any] = {
            "run": lambda: draws.pick([_RUN, _RUN, "run-2"]),
            "round": lambda: draws.pick([_ROUND, _ROUND, _VERSION, 0, 2**31 - 1]),
            "update": lambda: draws.pick(self._scene.refs),
            "digest": lambda: draws.pick(self._scene.refs).digest,
            "chunks": lambda: tuple(range(draws.byte() % 65)),
            "protocol": lambda: draws.pick([PROTOCOL, PROTOCOL, PROTOCOL, draws.number()]),
            "agent": lambda: "fuzz",
            "runtime": lambda: draws.pick(["onnx", "onnx", "onnx", "torch_eager", "none"]),
            "samples": lambda: draws.pick([_SAMPLES, _SAMPLES, draws.number()]),
            "test_samples": draws.number,
            "tier": draws.number,
            "loss": lambda: draws.pick([1.0, -1.0, float("nan"), float("inf"), 1e308]),
            "frame": draws.bytes,
            "code": lambda: draws.pick(["declined", "20", ""]),
            "reason": lambda: draws.pick(["", "\x1b[2J\n", "x" * 1000]),
        }
        needed = msgspec.structs.fields(kind)
        chosen = {f.name: fields[f.name]() for f in needed if f.name in fields}
        made: FromDevice = kind(**chosen)
        return made


def gateway() -> Prepared:
    """A conversation a case, with a coordinator that was restarted before each."""
    scene = _Scene()
    assert _Case(scene, _JOINS + _UPLOADS).play() == 1, "a good update is not taken"

    def run(data: bytes) -> None:
        _Case(scene, data).play()

    return Prepared(run, [bytes(range(k, k + 128)) for k in (0, 40, 90)] + [_JOINS + _UPLOADS])
