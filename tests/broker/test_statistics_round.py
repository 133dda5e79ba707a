"""Collected statistics: what is taken of what devices send, and what it comes to."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from broker.statistics_round import StatisticsRound, widths_asked
from edge_fl.aggregation.bounds import Bounds
from edge_fl.core.bundle import CLASS_INDEX, SCHEMA, Manifest
from edge_fl.core.content import Ref
from edge_fl.core.errors import FrameError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Block, Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.methods.base import open_method
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import PROTOCOL, CollectedStatistics, CollectStatistics, Register
from edge_fl.wire.sparse import SPARSE, encode_sent
from edge_fl.wire.values import flatten

RUN, ROUND, CLIENT, SAMPLES = "run-1", 5, "client-1", 60
_UNITS, _FREE, _ROWS = (Segment("h"),), (Segment(None, inner=3),), (Segment(None, inner=2),)
STATISTICS = tuple(
    Tensor(f"1.running_{what}", (2, 4), (_ROWS, _UNITS), (_ROWS, _UNITS), role="statistic")
    for what in ("mean", "var")
)
LAYOUT = Layout((Block("h", 4),), (Tensor("0.weight", (4, 3), (_UNITS, _FREE), (_UNITS, _FREE)), *STATISTICS))
MANIFEST = Manifest(
    schema=SCHEMA,
    name="m",
    dataset="digits",
    classes=10,
    input=Input((3,), "float32"),
    target=CLASS_INDEX,
    loss="cross_entropy",
    layout=LAYOUT,
    programs={},
    parity={},
    tools={},
    batch_norm="per-width",
    statistic_widths=(1000, 500),
    momenta={tensor.name: 0.1 for tensor in STATISTICS},
)
TASK = CollectStatistics(RUN, ROUND, Ref("0" * 64, 10), width=500, batch=20, seed=0)
PROFILE = Register(PROTOCOL, "t", "onnx", samples=SAMPLES)


def values(row: int, fill: float, name: str = "") -> dict[str, NDArray[np.float32]]:
    """Zeros, but for ``fill`` in a row of the statistics (of the one of that ``name``)."""
    tensors = {tensor.name: np.zeros(tensor.shape, dtype=np.float32) for tensor in LAYOUT.tensors}
    for tensor in STATISTICS:
        if name in tensor.name:
            tensors[tensor.name][row] = fill
    return tensors


def answer(
    tensors: dict[str, NDArray[np.float32]], width: int = 500, sent: bool = False, **changes: object
) -> CollectedStatistics:
    header = Header("statistics", run=RUN, round=ROUND, version=ROUND, layout="", method="heterofl", values=SPARSE)
    header = msgspec.structs.replace(header, **{"client": CLIENT, "samples": SAMPLES, **changes})
    pattern = Pattern.prefix(LAYOUT, width)
    vector = flatten(Selection.of(pattern, header.mode), tensors)
    section = encode_sent(vector, np.full(len(vector), sent)) if header.values == SPARSE else None
    return CollectedStatistics(RUN, ROUND, encode_frame(header, pattern, tensors, section))


def asked(**tasks: CollectStatistics) -> StatisticsRound:
    return StatisticsRound(
        ROUND, manifest=MANIFEST, tasks={name.replace("_", "-"): t for name, t in tasks.items()}
    )


@pytest.mark.parametrize(
    ("code", "spoiled"),
    [
        ("statistics", lambda: answer(values(1, -0.5, "var"))),
        ("statistics", lambda: answer(values(0, 0.5))),
        ("statistics", lambda: answer(values(1, 0.5), sent=True)),
        ("statistics", lambda: answer(values(1, 0.5), values="float32")),
        ("not-finite", lambda: answer(values(1, float("nan"), "mean"))),
        ("not-finite", lambda: answer(values(1, float("inf"), "var"))),
        ("pattern", lambda: answer(values(1, 0.5), width=1000)),
        ("kind", lambda: answer(values(1, 0.5), kind="update")),
        ("kind", lambda: answer(values(1, 0.5), mode="rows")),
        ("foreign", lambda: answer(values(1, 0.5), client="client-2")),
        ("stale", lambda: answer(values(1, 0.5), version=ROUND - 1)),
        ("stale", lambda: answer(values(1, 0.5), run="run-2")),
        ("samples", lambda: answer(values(1, 0.5), samples=SAMPLES + 1)),
        ("samples", lambda: answer(values(1, 0.5), samples=0)),
        ("truncated", lambda: CollectedStatistics(RUN, ROUND, answer(values(1, 0.5)).frame[:-1])),
        ("oversize", lambda: CollectedStatistics(RUN, ROUND, bytes(1 << 20))),
    ],
)
def test_bad_statistics_change_nothing_and_end_the_waiting(
    code: str, spoiled: Callable[[], CollectedStatistics]
) -> None:
    current = asked(client_1=TASK)
    with pytest.raises(FrameError) as caught:
        current.take(CLIENT, spoiled(), PROFILE)
    assert caught.value.code == code
    assert not current.outstanding()
    weights = values(0, 7.0)
    assert all(np.array_equal(array, weights[name]) for name, array in current.combined(weights).items())


def test_each_row_is_the_mean_over_samples_of_its_own_clients_and_the_rest_stays() -> None:
    wide = msgspec.structs.replace(TASK, width=1000)
    current = asked(a=TASK, b=TASK, c=wide)
    for client, task, fill, samples in (("b", TASK, 2.0, 40), ("a", TASK, 5.0, 20), ("c", wide, 1.5, 10)):
        row = 1 if task is TASK else 0
        assert current.take(client, answer(values(row, fill), task.width, client=client, samples=samples), PROFILE)
    assert current.samples() == {500: 60, 1000: 10}
    result = current.combined(values(1, 7.0))
    for tensor in STATISTICS:
        assert result[tensor.name].tolist() == [[1.5] * 4, [3.0, 3.0, 7.0, 7.0]]
    assert not result["0.weight"].any()


def test_who_claims_samples_without_end_counts_for_some_times_the_median() -> None:
    current = asked(a=TASK, b=TASK, c=TASK)
    current.bounds = Bounds(samples=2)
    boast = msgspec.structs.replace(PROFILE, samples=2**31 - 1)
    for client, fill, samples in (("a", 1.0, 10), ("b", 1.0, 10), ("c", 3.0, 2**31 - 1)):
        assert current.take(client, answer(values(1, fill), client=client, samples=samples), boast)
    for tensor in STATISTICS:  # (10 * 1 + 10 * 1 + 20 * 3) / 40
        assert current.combined(values(1, 7.0))[tensor.name][1].tolist() == [2.0, 2.0, 7.0, 7.0]


def test_one_set_of_statistics_is_collected_at_the_widest_width_there_is() -> None:
    method, tiers = open_method("heterofl", {"levels": ["a", "b", "c"]}), {"x": 1, "y": 2, "z": 1}
    assert widths_asked(method, MANIFEST, tiers) == {"x": 500, "y": 250, "z": 500}
    tracked = msgspec.structs.replace(MANIFEST, layout=Layout((), ()), batch_norm="tracked", statistic_widths=())
    assert widths_asked(method, tracked, tiers) == {"x": 500, "z": 500}
    assert widths_asked(method, tracked, {}) == {}
