"""An agent, and a coordinator driven by hand."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from edge_fl.agent.agent import Agent, AgentSettings
from edge_fl.agent.opening import Opener, in_this_process
from edge_fl.core.bundle import MANIFEST, Bundle
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import EdgeFLError
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Weights
from edge_fl.data.sources.base import open_source
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Message
from edge_fl.transport.transfer import Sender, cut
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import (
    FromDevice,
    Offer,
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
HERE = in_this_process()


class Stage:
    """An agent on a thread, and the coordinator's end of the conversation."""

    def __init__(
        self,
        bundle: Bundle,
        address: BrokerAddress,
        folder: Path,
        data: str,
        *,
        once: bool = True,
        test_share: float = 0.0,
        open: Opener = HERE,
        **settings: object,
    ) -> None:
        self.address = address
        up = TOPICS.up("+")
        self._connection = Connection(
            address=address, client_id="coordinator", subscriptions=[up, f"{up}/chunk/#"]
        )
        self._connection.open(timeout=5)
        assert isinstance(self._connection.next(5), Connected)
        self._sender = Sender(self._connection.publish, TOPICS.chunk)
        files = [MANIFEST, *bundle.manifest.program_files(str(settings.get("runtime", "onnx")))]
        self._contents = {ref_of(bundle.read(name)).digest: bundle.read(name) for name in files}
        self.manifest = ref_of(bundle.read(MANIFEST))
        self.heard: list[FromDevice] = []
        how = AgentSettings(
            broker=address,
            client=CLIENT,
            state=folder / "state",
            once=once,
            test_share=test_share,
            **settings,  # type: ignore[arg-type]
        )
        self.agent = Agent(how, open_source(data), open=open)
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

    def join(self, *rehearsals: Task) -> None:
        """Register the device and let it fetch the bundle."""
        self.hears(Register)
        self.say(Registered(RUN, self.manifest, rehearsals))
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
            "tier": 0,
        }
        return Task(**{**fields, **changes})  # type: ignore[arg-type]

    def give(self, content: bytes) -> Ref:
        """Serve this content, too, to whoever wants it."""
        ref = ref_of(content)
        self._contents[ref.digest] = content
        return ref

    def given(self, ref: Ref) -> bytes:
        return self._contents[ref.digest]

    def offered(self, number: int) -> None:
        """Wait for the update of this round."""
        self.until(lambda: any(isinstance(m, Offer) and m.round == number for m in self.heard))

    def wanted(self, ref: Ref) -> bool:
        return any(isinstance(m, Want) and m.digest == ref.digest for m in self.heard)

    def close(self) -> None:
        self._connection.close()


def frame(bundle: Bundle, kind: str, version: int, weights: Weights, **header: object) -> bytes:
    """A model or a change, of all units unless ``kept`` says otherwise."""
    pattern = header.pop("kept", Pattern.full(bundle.layout))
    fields = {"run": RUN, "round": version + 1, "version": version, "layout": "", "method": "fedavg", **header}
    return encode_frame(Header(kind=kind, **fields), pattern, weights)  # type: ignore[arg-type]
