"""What a device remembers lives in full-model coordinates, whatever a round's pattern leaves out."""

from pathlib import Path

import numpy as np
import pytest

from edge_fl.compressors.base import DECODERS, open_compressor
from edge_fl.core.bundle import SCHEMA, Bundle, Manifest, Program
from edge_fl.core.content import Ref
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.data.registry import Samples
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.runtimes.base import Compiled, Runtime
from edge_fl.training.update import make_update
from edge_fl.wire.context import Vector
from edge_fl.wire.frame import Frame, Header, decode_frame
from edge_fl.wire.messages import Task
from edge_fl.wire.values import flatten

LAYOUT = mlp_layout(6, 9, 7, 3)
INPUTS = tuple(f"tensor.{tensor.name}" for tensor in LAYOUT.tensors)
OUTPUTS = ("loss", *(f"new.{name}" for name in INPUTS))
SIZE = sum(tensor.size for tensor in LAYOUT.parameters)
SHARES: dict[str, dict[str, float]] = {"signsgd": {}, "tcs": {"tcs.local_ratio": 0.2}}
SAMPLES = Samples(np.zeros((4, 6), dtype=np.float32), np.zeros(4, dtype=np.int64))


class DoublingRuntime(Runtime):
    """A step that doubles every weight it is given, so that a difference is the weight itself, exactly."""

    name = "doubling"

    def load(self, program: Program) -> Compiled:
        return lambda inputs: [np.float32(1.0), *(2 * array for array in inputs[: len(LAYOUT.tensors)])]


def runtime() -> Runtime:
    manifest = Manifest(
        schema=SCHEMA,
        name="mlp",
        dataset="none",
        classes=3,
        input=Input((6,), "float32"),
        target=Input((), "int64"),
        loss="cross-entropy",
        layout=LAYOUT,
        programs={"doubling": (Program("step", "step", INPUTS, OUTPUTS),)},
        parity={},
        tools={},
    )
    return DoublingRuntime(Bundle(Path(), manifest))


def integers(seed: int) -> dict[str, np.ndarray]:
    """Weights and residuals that float32 adds without rounding."""
    return {name: np.round(10 * tensor) for name, tensor in random_weights(LAYOUT, seed).items()}


def update(compressor: str, mode: str, state: dict[str, np.ndarray]) -> tuple[Frame, dict[str, np.ndarray]]:
    task = Task(
        run="r",
        round=1,
        accepted=0,
        model=Ref("0" * 64, 0),
        method=f"fedbiad+{compressor}",
        parameters={"mode": mode, **SHARES.get(compressor, {f"{compressor}.ratio": 0.2})},
        steps=1,
        batch=4,
        lr=0.1,
        seed=3,
        tier=0,
        mask="bitmask",
        pattern=b"",
    )
    full = Pattern.full(LAYOUT)
    header = Header(kind="model", run="r", round=1, version=0, layout=LAYOUT.digest, method=task.method)
    model = Frame(header, full, Selection.of(full, "units"), integers(1))
    done = make_update(task, client="a", model=model, runtime=runtime(), samples=SAMPLES, state=state)
    return decode_frame(done.frame, LAYOUT, decoders=DECODERS), dict(done.state)


def in_full(values: Weights, selection: Selection) -> Vector:
    """Kept entries as one vector of the whole model, zero where nothing is kept."""
    tensors = {tensor.name: np.zeros(tensor.shape, dtype=np.float32) for tensor in LAYOUT.tensors}
    selection.scatter(values, tensors)
    return flatten(Selection.of(Pattern.full(LAYOUT), "units"), tensors)


@pytest.mark.parametrize("mode", ["rows", "units"])
@pytest.mark.parametrize("name", ["dgc", "randk", "signsgd", "stc", "tcs", "topk"])
def test_entries_left_out_keep_what_is_remembered_of_them(name: str, mode: str) -> None:
    memory = open_compressor(name, {}).memory
    whole = Selection.of(Pattern.full(LAYOUT), "units")
    old = {f"{name}.{part}": flatten(whole, integers(5 + i)) for i, part in enumerate(memory)}
    before = {part: vector.copy() for part, vector in old.items()}
    frame, state = update(name, mode, old)
    ones = {tensor.name: np.ones(frame.selection.shape(tensor), dtype=np.float32) for tensor in LAYOUT.tensors}
    kept = in_full(ones, frame.selection) == 1
    assert 0 < np.count_nonzero(kept) < SIZE
    for part, vector in old.items():
        np.testing.assert_array_equal(vector, before[part])
        np.testing.assert_array_equal(state[part][~kept], vector[~kept])
        assert (state[part][kept] != vector[kept]).any()
    if name != "dgc":
        compact = Selection.of(frame.pattern, "units")
        delta = in_full(compact.gather(integers(1)), compact)
        sent = in_full(frame.values, frame.selection)
        total = (delta + old[f"{name}.residual"])[kept]
        np.testing.assert_array_equal(state[f"{name}.residual"][kept], total - sent[kept])


def test_the_second_round_starts_from_what_the_first_remembered() -> None:
    first, state = update("topk", "rows", {})
    second, _ = update("topk", "rows", {"topk.residual": state["topk.residual"]})
    both = in_full(first.values, first.selection) != 0, in_full(second.values, second.selection) != 0
    assert (both[1] & ~both[0]).any()
