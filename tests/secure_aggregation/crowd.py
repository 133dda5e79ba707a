"""Devices that answer a coordinator's requests in this process, some of which leave; no broker, no training."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker.poll import Poll
from broker.rounds import Report, Round
from broker.secure_aggregation.aggregator import SecureAggregator
from broker.secure_aggregation.polls import MaskedPoll
from broker.secure_aggregation.round_total import Plan, SecureTotal
from edge_fl.aggregation.bounds import Bounds
from edge_fl.aggregation.rules import Accumulator, find_rule
from edge_fl.aggregation.sums import CpuSumming
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import Change
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.secure_aggregation.participant import Participant
from edge_fl.wire.frame import Frame, Header, decode_frame, encode_frame
from edge_fl.wire.messages import MakeKeys, Offer, Register, SendMasked, ShareKeys, Task, Unmask
from edge_fl.wire.values import WITHHELD, encode_values_into, values_size

RUN, ROUND = "run", 3
PROFILE = Register(protocol=2, agent="test", runtime="onnx", samples=1000)


@dataclass(frozen=True)
class Update:
    """One device's update: what it announces, and what it keeps to itself."""

    client: str
    tier: int
    frame: bytes
    values: bytes
    kept: dict[str, NDArray[np.float32]]
    pattern: Pattern
    samples: int


def update(layout: Layout, client: str, pattern: Pattern, mode: Mode, *, samples: int, tier: int = 0) -> Update:
    """An update of small random differences."""
    random = np.random.default_rng(int(client.removeprefix("d")))
    delta = {
        tensor.name: random.normal(0, 0.1, tensor.shape).astype(np.float32).clip(-0.9, 0.9)
        for tensor in layout.tensors
    }
    header = Header(
        kind="update",
        run=RUN,
        round=ROUND,
        version=ROUND - 1,
        layout=layout.digest,
        method="fedavg",
        mode=mode,
        client=client,
        samples=samples,
        loss=0.5 + samples / 1000,
        values=WITHHELD,
    )
    selection = Selection.of(pattern, mode)
    values = bytearray(values_size(selection))
    encode_values_into(memoryview(values), selection, delta)
    frame = encode_frame(header, pattern, delta)
    return Update(client, tier, frame, bytes(values), selection.gather(delta), pattern, samples)


@dataclass
class Crowd:
    """A fleet whose clients answer at once. ``leaves`` says who answers nothing from a kind of request on."""

    layout: Layout
    updates: Mapping[str, Update]
    leaves: Callable[[type, int], Collection[str]] = lambda _kind, _attempt: ()
    tamper: Callable[[str, Any], Any] = lambda _client, answer: answer
    signatory: Callable[[str], Any] = lambda _client: None
    asked: list[tuple[str, type]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.vectors: dict[str, bytes] = {}
        self.participants = {
            client: Participant(
                decode_frame(one.frame, self.layout), one.values, self.layout, self.signatory(client)
            )
            for client, one in self.updates.items()
        }

    def offer_changes(self, frames: Sequence[bytes]) -> tuple[Ref, ...]:
        refs = tuple(ref_of(frame) for frame in frames)
        self.contents |= {ref.digest: frame for ref, frame in zip(refs, frames, strict=True)}
        return refs

    def poll(self, current: Poll[Any, Any], *, deadline: float, gone_after: float) -> None:
        del deadline, gone_after
        for client, request in current.tasks.items():
            self.asked.append((client, type(request)))
            if client in self.leaves(type(request), request.attempt):
                continue
            try:
                self._answer(current, client, request)
            except FrameError as error:
                self.refused = error
                current.excused.add(client)
        current.closed = True

    def _answer(self, current: Poll[Any, Any], client: str, request: Any) -> None:
        device = self.participants[client]
        match request:
            case MakeKeys(attempt=attempt):
                answer: Any = device.keys(attempt)
            case ShareKeys(attempt=attempt, roster=roster):
                answer = device.shares(attempt, self.contents[roster.digest])
            case Unmask(attempt=attempt, survivors=survivors):
                answer = device.unmask(attempt, survivors)
            case SendMasked(attempt=attempt, sealed=sealed):
                content = device.masked(attempt, sealed)
                self.vectors[client] = content
                offer = Offer(RUN, ROUND, ref_of(content), attempt)
                assert isinstance(current, MaskedPoll)
                current.check(client, offer, PROFILE)
                current.add(client, content)
                current.answers[client] = offer
                return
        current.take(client, self.tamper(client, answer), PROFILE)


def plan(layout: Layout, mode: Mode, rule: str, secure: SecureAggregation, bounds: Bounds | None = None) -> Plan:
    return Plan(layout, mode, find_rule(rule), bounds or Bounds(), secure, RUN, 0, ROUND)


def summed(
    crowd: Crowd, how: Plan, folder: Path, *, quorum: int = 1, check: Any = None
) -> tuple[SecureTotal, Round]:
    """What the aggregator makes of the crowd's updates, and the round that it was."""
    current = Round(ROUND, ROUND - 1, quorum, 1e9)
    path = folder / "announced"
    offsets, content = {}, b""
    for client, one in crowd.updates.items():
        offsets[client] = len(content)
        content += one.frame
    path.write_bytes(content)
    for client, one in crowd.updates.items():
        task = Task(RUN, ROUND, 0, Ref("0" * 64, 1), "fedavg", {}, 1, 1, 0.1, 0, one.tier, withheld=True)
        current.ask(client, task, None)
        current.report(client, Report(one.samples, 0.5, len(one.frame), path, offsets[client]))
    config = RunConfig(
        run=RUN,
        method="fedavg",
        parameters={},
        rounds=3,
        clients_per_round=len(crowd.updates),
        local_steps=1,
        batch=1,
        lr=0.1,
        seed=0,
        secure=how.secure,
    )
    aggregator = SecureAggregator(
        config=config,
        fleet=crowd,  # type: ignore[arg-type]
        plan=lambda _number: how,
        record=lambda number: folder / f"{number}.aggregation",
        check=check or (lambda *_: None),
    )
    return aggregator.total(current, {}), current


def plain(total: SecureTotal, crowd: Crowd, how: Plan, weights: Mapping[str, Any]) -> Change:
    """The rule applied in float64 to the updates that went in, without the entries that too few members hold."""
    layout, sums = how.layout, total.sums._sums
    change = {}
    for tensor in layout.tensors:
        numerator, held = np.zeros(tensor.shape), np.zeros(tensor.shape)
        thin_somewhere, everyone = np.zeros(tensor.shape, dtype=bool), 0
        for one in sums:
            thin = one.cohort.thin(tensor, one.sharing)
            thin_somewhere |= thin
            for client in one.survivors:
                device = crowd.updates[client]
                weight = one.cohort.members[client].weight
                everyone += weight
                index = Selection.of(device.pattern, how.mode).index(tensor)
                full, mask = np.zeros(tensor.shape), np.zeros(tensor.shape)
                full[index], mask[index] = device.kept[tensor.name], 1
                full[thin], mask[thin] = 0, 0
                numerator += weight * full
                held += weight * mask
        combine = how.rule.combine_of(tensor)
        old = np.asarray(weights[tensor.name])
        done = combine(np, old, numerator.copy(), held, float(everyone))
        change[tensor.name] = np.where((held == 0) & thin_somewhere, 0.0, done)
    return change


__all__ = ["Accumulator", "CpuSumming", "Crowd", "Frame", "plain", "plan", "summed", "update"]
