"""Aggregation rules against sums written out entry by entry, in numpy, in compiled loops and in torch."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from array_api_compat import torch as torch_xp
from numpy.typing import NDArray

from broker import sum_kernels
from edge_fl.aggregation import rules
from edge_fl.aggregation import sums as summing
from edge_fl.aggregation.rules import Accumulator, find_rule, rule_names
from edge_fl.aggregation.sums import CpuSumming, Summing
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Block, Layout, Mode, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import Change, Weighting
from edge_fl.measure.models import mlp_layout, random_weights

LAYOUT = mlp_layout(5, 8, 6, 3)
SAMPLES = (10, 30, 5)
BACKENDS: dict[str, Summing] = {
    "numpy": CpuSumming(),
    "compiled": CpuSumming(lambda: sum_kernels),
    "torch": Summing(torch_xp, "cpu"),
}
if torch.cuda.is_available():
    BACKENDS["cuda"] = Summing(torch_xp, "cuda")
ON_CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(autouse=True)
def compiled_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors here are smaller than those that compiled loops are used for."""
    monkeypatch.setattr(summing, "_FEW", 0)


each_backend = pytest.mark.parametrize("backend", ["numpy", "compiled", "torch", ON_CUDA])


def updates(mode: Mode) -> list[tuple[Selection, dict[str, NDArray[np.float32]]]]:
    """Three clients' deltas; unit 0 of layer0 is held by nobody."""
    selections = []
    for client in range(len(SAMPLES)):
        mask = Pattern.seeded(LAYOUT, 500, client).mask.copy()
        mask[0] = False
        selections.append(Selection.of(Pattern(LAYOUT, mask), mode))
    return [(s, received(s.gather(random_weights(LAYOUT, 10 + k)))) for k, s in enumerate(selections)]


def received(values: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """As a frame gives them: views of bytes, which after a compressor's may lie at any address."""
    return {
        name: np.frombuffer(b"." + array.tobytes(), np.float32, offset=1).reshape(array.shape)
        for name, array in values.items()
    }


def aggregate(backend: str, rule: str, mode: Mode, order: list[int], weighting: Weighting = "samples") -> Change:
    sums, every = Accumulator(LAYOUT, find_rule(rule, weighting), BACKENDS[backend]), updates(mode)
    for k in order:
        sums.add(*every[k], SAMPLES[k])
    return sums.change(random_weights(LAYOUT, 1))


def by_the_definition(rule: str, mode: Mode, weights: Sequence[int]) -> Change:
    old, every, new = random_weights(LAYOUT, 1), updates(mode), {}
    for tensor in LAYOUT.tensors:
        total, held, signs = (np.zeros(tensor.shape) for _ in range(3))
        for weight, (selection, values) in zip(weights, every, strict=True):
            full, mask = np.zeros(tensor.shape), np.zeros(tensor.shape)
            full[selection.index(tensor)] = values[tensor.name]
            mask[selection.index(tensor)] = 1
            total += weight * full
            held += weight * mask
            signs += weight * np.sign(full)
        new[tensor.name] = np.empty(tensor.shape)
        for i in np.ndindex(*tensor.shape):
            u = float(old[tensor.name][i])
            new[tensor.name][i] = {
                "mean": total[i] / sum(weights),
                "holders": total[i] / held[i] if held[i] else 0,
                "vote": int(signs[i] > 0) - int(signs[i] < 0),
                "zeros": (total[i] + held[i] * u) / sum(weights) - u,
            }[{"products": "holders"}.get(rule, rule)]  # no tensor here is an adapter
    return new


@pytest.mark.parametrize("mode", ["rows", "units"])
@pytest.mark.parametrize("weighting", ["samples", "clients"])
@pytest.mark.parametrize("rule", rule_names())
@each_backend
def test_a_rule_is_its_definition(backend: str, rule: str, weighting: Weighting, mode: Mode) -> None:
    new = aggregate(backend, rule, mode, [0, 1, 2], weighting)
    expected = by_the_definition(rule, mode, SAMPLES if weighting == "samples" else [1, 1, 1])
    for name, tensor in expected.items():
        np.testing.assert_allclose(new[name], tensor, rtol=1e-6, atol=1e-7)
        assert new[name].dtype == np.float64


@pytest.mark.parametrize("rule", rule_names())
def test_numpy_and_compiled_loops_give_the_same_bits(rule: str) -> None:
    one, other = (aggregate(backend, rule, "units", [0, 1, 2]) for backend in ("numpy", "compiled"))
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_a_row_that_nobody_holds_keeps_its_value() -> None:
    change = aggregate("numpy", "holders", "rows", [0, 1, 2])
    assert not change["layer0.weight"][0].any()
    assert change["layer2.weight"].any()


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="no aggregation rule 'median'"):
        aggregate("numpy", "median", "rows", [0])


@pytest.mark.parametrize(("weighting", "share"), [("samples", 0.75), ("clients", 0.5)])
@pytest.mark.parametrize("rule", rule_names())
@each_backend
def test_statistics_of_a_width_are_the_mean_over_those_who_trained_it(
    backend: str, rule: str, weighting: Weighting, share: float
) -> None:
    units, rows = (Segment("conv"),), (Segment(None, inner=3),)
    layout = Layout(
        (Block("conv", 4),),
        (Tensor("bn.var", (3, 4), rows=(rows, units), units=(rows, units), role="statistic"),),
    )
    old = {"bn.var": np.arange(12, dtype=np.float32).reshape(3, 4)}
    sums = Accumulator(layout, find_rule(rule, weighting), BACKENDS[backend])
    wide, narrow = np.zeros((3, 4), np.float32), np.zeros((3, 2), np.float32)
    wide[0], wide[2] = 1.0, 3.0  # it drew the full width and the narrowest
    narrow[2] = 9.0  # the narrowest is all that it can run
    sums.add(Selection.of(Pattern.full(layout), "units"), {"bn.var": wide}, 10)
    sums.add(Selection.of(Pattern.prefix(layout, 500), "units"), {"bn.var": narrow}, 30)

    moved = sums.change(old)["bn.var"]

    both = (1 - share) * 3 + share * 9
    np.testing.assert_allclose(moved, [[1, 1, 1, 1], [0, 0, 0, 0], [both, both, 3, 3]], rtol=1e-6)


SUMS = """
import logging, sys
import numpy as np
from broker.sums import accumulator
from edge_fl.aggregation.rules import find_rule
from edge_fl.measure.models import mlp_layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
logging.basicConfig()
layout = mlp_layout(80, 128, 2)
ones = {tensor.name: np.ones(tensor.shape, np.float32) for tensor in layout.tensors}
sums = accumulator(layout, find_rule("mean"), "cpu")
sums.add(Selection.of(Pattern.full(layout), "rows"), ones, 3)
print(sums.change(ones)["layer0.weight"].sum(), "torch" in sys.modules)
"""


def tensor(name: str, *axes: tuple[Segment, ...], rows: tuple[tuple[Segment, ...], ...] = ()) -> Tensor:
    sizes = {"a": 12, "b": 10, None: 1}
    shape = tuple(sum(s.outer * s.inner * sizes[s.block] for s in axis) for axis in axes)
    return Tensor(name, shape, rows=rows or axes, units=axes)


def every_kind_of_tensor() -> Layout:
    """Kept rows, columns, both, neither, in two to four axes, of whole units and of several rows a unit."""
    a, b, gates, three = (Segment("a"),), (Segment("b"),), (Segment("a", outer=4),), (Segment(None, inner=3),)
    mixed = (Segment("a"), Segment(None, inner=2), Segment("b", inner=2))
    tensors = (
        tensor("number"),
        tensor("bias", a),
        tensor("whole", three, three),
        tensor("rows", gates, three),
        tensor("columns", three, mixed),
        tensor("both", gates, b),
        tensor("convolution", b, a, three, three),
        tensor("inner", three, a, three),
    )
    return Layout((Block("a", 12), Block("b", 10)), tensors)


@pytest.mark.parametrize(("block", "waiting"), [(1, 0), (60, 1000), (summing._BLOCK, rules._WAITING_BYTES)])
@pytest.mark.parametrize("mode", ["rows", "units"])
@each_backend
def test_the_sums_are_those_of_one_update_after_another_to_the_bit(
    backend: str, mode: Mode, block: int, waiting: int, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summing, "_BLOCK", block)
    monkeypatch.setattr(rules, "_WAITING_BYTES", waiting)
    layout = every_kind_of_tensor()
    old = random_weights(layout, 0)
    patterns = [Pattern.seeded(layout, 500, key) for key in range(6)]
    patterns += [Pattern.prefix(layout, 300), Pattern.full(layout), Pattern(layout, np.zeros(22, np.bool_))]
    sums = Accumulator(layout, find_rule("holders"), BACKENDS[backend])
    total = {t.name: np.zeros(t.shape) for t in layout.tensors}
    held = {t.name: np.zeros(t.shape) for t in layout.tensors}
    for client, pattern in enumerate(patterns):
        selection, samples = Selection.of(pattern, mode), 7919 * client + 1
        values, discount = received(selection.gather(random_weights(layout, 1 + client))), (1 + client) ** -0.5
        sums.add(selection, values, samples, discount)
        for t in layout.tensors:
            total[t.name][selection.index(t)] += discount * samples * values[t.name].astype(np.float64)
            held[t.name][selection.index(t)] += samples

    for name, moved in sums.change(old).items():
        assert moved.tobytes() == (total[name] / np.where(held[name] > 0, held[name], 1)).tobytes(), name


@pytest.mark.parametrize("damage", ["no folder", "half a file", "no numba"])
def test_a_coordinator_sums_without_numbas_cache_or_numba(damage: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    if damage == "no folder":
        cache.write_bytes(b"")  # not even root may make one there
    elif damage == "half a file":
        subprocess.run([sys.executable, "-c", SUMS], check=True, env=environment)
        for file in cache.rglob("*.nb?"):
            file.write_bytes(file.read_bytes()[:20])
    hidden = "import sys; sys.modules['numba'] = None; " if damage == "no numba" else ""

    done = subprocess.run(
        [sys.executable, "-c", hidden + SUMS], check=False, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10240.0", "False"]
    assert ("sums are made without numba" in done.stderr) == (damage == "no numba")
