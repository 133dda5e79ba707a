"""Devices that answer a coordinator's requests in this process, some of which leave; no broker, no training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker.poll import Poll
from broker.rounds import Report, Round
from broker.secure_aggregation.aggregator import SecureAggregator
from broker.secure_aggregation.round_total import Plan, SecureTotal
from device_sim.simulation.participants import Participants
from edge_fl.aggregation.bounds import Bounds
from edge_fl.aggregation.rules import find_rule
from edge_fl.core.content import Ref
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import Change
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.secure_aggregation.participant import Participant
from edge_fl.wire.frame import Header, decode_frame, encode_frame
from edge_fl.wire.messages import SendMasked, Task
from edge_fl.wire.values import WITHHELD, floats_of

RUN, ROUND = "run", 3


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
    kept, frame = Selection.of(pattern, mode).gather(delta), encode_frame(header, pattern, delta)
    return Update(client, tier, frame, floats_of(layout, kept), kept, pattern, samples)


class Crowd(Participants):
    """Participants whose answers a test may change, by what ``tamper`` makes of them."""

    def __init__(
        self,
        layout: Layout,
        updates: dict[str, Update],
        tamper: Callable[[str, Any], Any] = lambda _client, answer: answer,
        signatory: Callable[[str], Any] = lambda _client: None,
    ) -> None:
        super().__init__(
            {
                client: Participant(decode_frame(one.frame, layout), one.values, layout, signatory(client))
                for client, one in updates.items()
            }
        )
        self.updates, self._tamper = updates, tamper
        self.asked: list[tuple[str, type]] = []
        self.vectors: dict[str, bytes] = {}
        self.rejected: set[tuple[int, str, str]] = set()

    def reject(self, client: str, code: str, reason: str, *, round: int) -> None:
        del reason
        self.rejected.add((round, client, code))

    def ask(self, current: Poll[Any, Any], client: str, request: Any) -> None:
        self.asked.append((client, type(request)))
        if isinstance(request, SendMasked):
            self.vectors[client] = self.members[client].masked(request.attempt, request.sealed)
        super().ask(current, client, request)

    def answer(self, client: str, request: Any) -> Any:
        return self._tamper(client, super().answer(client, request))


def plan(layout: Layout, mode: Mode, rule: str, secure: SecureAggregation, bounds: Bounds | None = None) -> Plan:
    return Plan(layout, mode, find_rule(rule), bounds or Bounds(), secure, RUN, 0, ROUND)


def summed(
    crowd: Crowd, how: Plan, folder: Path, *, quorum: int = 1, check: Any = None
) -> tuple[SecureTotal, Round]:
    """What the aggregator makes of the crowd's updates, and the round that it was."""
    current = announced(crowd, folder, quorum=quorum)
    return aggregator_of(crowd, how, folder, check=check).total(current, {}), current


def announced(crowd: Crowd, folder: Path, *, quorum: int) -> Round:
    """A round in which the crowd's updates were accepted."""
    current, path = Round(ROUND, ROUND - 1, quorum, 1e9), folder / "announced"
    offset = 0
    path.write_bytes(b"".join(one.frame for one in crowd.updates.values()))
    for client, one in crowd.updates.items():
        task = Task(RUN, ROUND, 0, Ref("0" * 64, 1), "fedavg", {}, 1, 1, 0.1, 0, one.tier, withheld=True)
        current.ask(client, task, None)
        current.report(client, Report(one.samples, 0.5, len(one.frame), path, offset))
        offset += len(one.frame)
    return current


def aggregator_of(crowd: Crowd, how: Plan, folder: Path, *, check: Any = None) -> SecureAggregator:
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
    return SecureAggregator(
        config=config,
        fleet=crowd,  # type: ignore[arg-type]
        plan=lambda _number: how,
        record=lambda number: folder / f"{number}.aggregation",
        check=check or (lambda *_: None),
        reject=crowd.reject,
    )


def plain(total: SecureTotal, crowd: Crowd, how: Plan, weights: Mapping[str, Any]) -> Change:
    """The rule applied in float64 to the updates that went in, without the entries that too few members hold."""
    layout, sums = how.layout, total.sums.sums
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
