"""Secure aggregation in one process: what devices and the coordinator compute and send, against open aggregation."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from benchmarks.peers.flower import check_flower, sum_in_flower
from broker.poll import Poll
from broker.rounds import Report, Round
from broker.secure_aggregation.aggregator import SecureAggregator
from broker.secure_aggregation.round_total import Plan
from broker.sums import accumulator
from device_sim.simulation.participants import Participants
from edge_fl.aggregation.bounds import Bounds
from edge_fl.aggregation.rules import find_rule
from edge_fl.core.content import Ref
from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import Change
from edge_fl.measure.bars import Bars
from edge_fl.measure.models import mlp_layout
from edge_fl.measure.table import Result, Row
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.secure_aggregation.participant import Participant
from edge_fl.wire.frame import Header, decode_frame, encode_frame
from edge_fl.wire.messages import AggregationRequest, SendMasked, Task, Unmask
from edge_fl.wire.values import WITHHELD, floats_of

__all__ = ["PATTERNS", "bench_secure"]

_RUN, _ROUND, _SAMPLES = "bench", 1, 100
_SECURE = SecureAggregation(threshold=0.6)  # as a third leaves
_WIDTHS = (1000, 600, 200)
PATTERNS: dict[str, tuple[Mode, Callable[[Layout, int], Pattern]]] = {
    "all rows": ("rows", lambda layout, _: Pattern.full(layout)),
    "FedBIAD, p = 0.5": ("rows", lambda layout, client: Pattern.seeded(layout, 500, client)),
    "FjORD, widths 1, 0.6, 0.2": ("units", lambda layout, client: Pattern.prefix(layout, _WIDTHS[client % 3])),
}
"""Which rows a device holds, by number, and the mode of its updates."""


_ABOUT = (
    "Real keys, shares and masks of a round in one process, without a network and without training. A device's "
    "processor time is that of its four answers. The coordinator's is all else: rosters, sums, unmasking. In the "
    "open a device encodes its frame, and the coordinator reads and sums all frames. The model has {size:,} "
    "weights. Cohorts have at most {cohort} devices, {holders} of which must hold a row, and {threshold:.0%} must "
    "stay. Those who leave do so after they shared their keys, which costs most. Where rows become those of too "
    "few, all send anew. Up and down are bytes of a device that stays, besides the model that it trains. 'Left "
    "out' is the share of entries in rows that too few devices hold. The error is the largest difference of the "
    "mean to that of the updates that went in, in float64. Flower's workflow and mod for SecAgg+ sum vectors of "
    "the same length, with a mask between every two clients, as here. Its masks are numpy's random numbers, which "
    "are no cipher's."
)


class _Timed(Participants):
    """Counts the processor time of devices."""

    seconds = 0.0

    def ask(self, current: Poll[Any, Any], client: str, request: AggregationRequest) -> None:
        began = time.process_time()
        super().ask(current, client, request)
        self.seconds += time.process_time() - began


@dataclass(frozen=True)
class _Update:
    """A device's update, in the open and without its values."""

    frame: bytes
    announced: bytes
    values: bytes
    encoding: float


def bench_secure(
    counts: Sequence[int], layout: Layout | None, report: Callable[[str], None], flower: Path | None = None
) -> Result:
    """Sum the updates of each number of devices, for each pattern, with and without a third that leaves.

    Parameters
    ----------
    layout
        The model's; None for the Fashion-MNIST perceptron's.
    flower
        The Python of an environment with Flower, which sums vectors of the same length by SecAgg+; None leaves it out.

    Raises
    ------
    RuntimeMissingError
        When Flower cannot be run.
    """
    layout = layout or mlp_layout(784, 256, 256, 10)
    if flower is not None:
        check_flower(flower, simulates=False)
    rows: list[Row] = []
    _row(layout, next(iter(PATTERNS)), 2 * _SECURE.holders, 0)  # loops are compiled when they run first
    for count in counts:
        for leave in (0, count // 3):
            for name in PATTERNS:
                report(f"{count} devices, {leave} leave: {name}")
                rows.append(_row(layout, name, count, leave))
            if flower is not None and count <= _SECURE.cohort:
                report(f"{count} devices, {leave} leave: Flower")
                rows.append(_beside(layout, flower, count, leave, rows[-len(PATTERNS)]))
    return Result(
        title="Secure aggregation",
        command=f"edge-fl bench secure {' '.join(f'--devices {count}' for count in counts)}"
        f"{' --flower-python PYTHON' if flower else ''}",
        about=_ABOUT.format(
            size=layout.size, cohort=_SECURE.cohort, holders=_SECURE.holders, threshold=_SECURE.threshold
        ),
        rows=rows,
        bars=Bars(
            "Processor seconds of a round, by devices, how many of them leave, and updates",
            ("devices", "leave", "updates"),
            ("device (s)", "coordinator (s)"),
            logarithmic=True,
        ),
    )


def _row(layout: Layout, name: str, count: int, leave: int) -> Row:
    mode, _ = PATTERNS[name]
    updates = {f"d{i:03}": _update(layout, name, i) for i in range(count)}
    gone = sorted(updates)[:: count // leave][:leave] if leave else []
    members = {
        client: Participant(decode_frame(one.announced, layout), one.values, layout)
        for client, one in updates.items()
    }
    fleet = _Timed(members, lambda kind, _: gone if kind in (SendMasked, Unmask) else ())
    plan = Plan(layout, mode, find_rule("mean"), Bounds(), _SECURE, _RUN, 0, _ROUND)
    weights = {tensor.name: np.zeros(tensor.shape, dtype=np.float32) for tensor in layout.tensors}
    with TemporaryDirectory() as scratch:
        began = time.process_time()
        total, current = _summed(fleet, updates, plan, Path(scratch))
        change = total.sums.change(weights)
        coordinator = time.process_time() - began - fleet.seconds
    began = time.process_time()
    _open(layout, [one.frame for one in updates.values()], weights)
    plain = time.process_time() - began
    there = sorted(current.reports)
    sent = {client: len(updates[client].announced) + fleet.sent[client] for client in there}
    frame = float(np.mean([len(updates[client].frame) for client in there]))
    encoding = float(np.mean([one.encoding for one in updates.values()]))
    up = float(np.mean(list(sent.values())))
    return {
        "devices": str(count),
        "leave": str(leave),
        "updates": name,
        "device (s)": fleet.seconds / count,
        "device / open": fleet.seconds / count / encoding,
        "coordinator (s)": coordinator,
        "coordinator / open": coordinator / plain,
        "up (kB)": up / 1000,
        "up / open": up / frame,
        "down (kB)": float(np.mean([fleet.received[client] for client in there])) / 1000,
        "left out": total.left_out,
        "error": _error(layout, updates, there, total.sums, change),
    }


def _update(layout: Layout, name: str, number: int) -> _Update:
    mode, pattern_of = PATTERNS[name]
    pattern, random = pattern_of(layout, number), np.random.default_rng(number)
    delta = {
        tensor.name: random.normal(0, 0.1, tensor.shape).astype(np.float32).clip(-1, 1)
        for tensor in layout.tensors
    }
    header = Header(
        "update",
        _RUN,
        _ROUND,
        _ROUND - 1,
        layout.digest,
        "fedavg",
        mode=mode,
        client=f"d{number:03}",
        samples=_SAMPLES,
        loss=1.0,
    )
    began = time.process_time()
    frame = encode_frame(header, pattern, delta)
    encoding = time.process_time() - began
    values = floats_of(pattern.layout, Selection.of(pattern, mode).gather(delta))
    announced = msgspec.structs.replace(header, values=WITHHELD)
    return _Update(frame, encode_frame(announced, pattern, delta), values, encoding)


def _summed(fleet: _Timed, updates: dict[str, _Update], plan: Plan, folder: Path) -> Any:
    current = Round(_ROUND, _ROUND - 1, 1, 1e9)
    path, offset = folder / "announced", 0
    path.write_bytes(b"".join(one.announced for one in updates.values()))
    for number, (client, one) in enumerate(updates.items()):
        task = Task(_RUN, _ROUND, 0, Ref("0" * 64, 1), "fedavg", {}, 1, 1, 0.1, 0, number % 3, withheld=True)
        current.ask(client, task, None)
        current.report(client, Report(_SAMPLES, 1.0, len(one.announced), path, offset))
        offset += len(one.announced)
    config = RunConfig(
        run=_RUN,
        method="fedavg",
        parameters={},
        rounds=1,
        clients_per_round=len(updates),
        local_steps=1,
        batch=1,
        lr=0.1,
        seed=0,
        secure=plan.secure,
    )
    aggregator = SecureAggregator(
        config=config,
        fleet=fleet,  # type: ignore[arg-type]  # of a fleet it asks for two methods alone
        plan=lambda _: plan,
        record=lambda number: folder / f"{number}.aggregation",
        check=lambda *_: None,
        reject=lambda *_, **_round: None,
    )
    return aggregator.total(current, {}), current


def _open(layout: Layout, frames: Sequence[bytes], weights: dict[str, Any]) -> Change:
    """The mean of updates that the coordinator sees."""
    sums = accumulator(layout, find_rule("mean"), "cpu")
    for frame in frames:
        found = decode_frame(frame, layout)
        sums.add(found.selection, found.values, found.header.samples)
    return sums.change(weights)


def _error(layout: Layout, updates: dict[str, _Update], there: Sequence[str], sums: Any, change: Change) -> float:
    """The largest difference to the mean in float64 of what went in."""
    worst = 0.0
    frames = {client: decode_frame(updates[client].frame, layout) for client in there}
    for tensor in layout.tensors:
        total = np.zeros(tensor.shape)
        for one in sums.sums:
            thin = one.left_out(tensor).reshape(tensor.shape)
            for client in one.survivors:
                full = np.zeros(tensor.shape)
                full[frames[client].selection.index(tensor)] = frames[client].values[tensor.name]
                total += np.where(thin, 0.0, full)
        worst = max(worst, float(np.abs(total / len(there) - change[tensor.name]).max()))
    return worst


def _beside(layout: Layout, flower: Path, count: int, leave: int, ours: Row) -> Row:
    found = sum_in_flower(
        flower,
        clients=count,
        leave=leave,
        shares=1.0,
        threshold=_SECURE.threshold,
        entries=layout.size,
        reach=_SECURE.reach,
    )
    device, coordinator = (
        float(ours[f"{who} / open"]) / float(ours[f"{who} (s)"]) for who in ("device", "coordinator")
    )
    return {
        "devices": str(count),
        "leave": str(leave),
        "updates": f"Flower {found.version}, SecAgg+, all rows",
        "device (s)": found.device,
        "device / open": found.device * device,
        "coordinator (s)": found.server,
        "coordinator / open": found.server * coordinator,
        "up (kB)": found.up / 1000,
        "up / open": found.up / (4 * layout.size),
        "down (kB)": found.down / 1000,
        "left out": 0.0,
        "error": found.error,
    }
