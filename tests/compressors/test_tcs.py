"""TCS against Algorithms 2 and 3 written out entry by entry, its section, and what the server shares of it."""

import contextlib
import itertools
import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.compressors.base import DECODERS, open_compressor
from edge_fl.compressors.fractional import decode_fractional
from edge_fl.compressors.tcs import Tcs
from edge_fl.core.errors import FrameError
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection
from edge_fl.measure.models import mlp_layout
from edge_fl.recipes.recipe import open_recipe
from edge_fl.wire.context import Context
from edge_fl.wire.positions import encode_golomb, golomb_width
from tests.compressors.contexts import of_entries

LAYOUT = mlp_layout(5, 12, 9, 3)
SIZES = [tensor.size for tensor in LAYOUT.parameters]
D = sum(SIZES)
FULL, SOME, OTHERS = (
    Context(Selection.of(pattern, "units"), 1)
    for pattern in (Pattern.full(LAYOUT), Pattern.seeded(LAYOUT, 500, 1), Pattern.seeded(LAYOUT, 500, 2))
)


def tcs(**parameters: object) -> Tcs:
    made = open_compressor("tcs", parameters)
    assert isinstance(made, Tcs)
    return made


def mask_of(positions: list[int], d: int) -> bytes:
    """A global mask as it is shared."""
    width = golomb_width(len(positions), d)
    return struct.pack("<BI", width, len(positions)) + encode_golomb(np.array(positions, dtype=np.int64), width)


def tensors(vector: np.ndarray) -> dict[str, np.ndarray]:
    """One number for each parameter as the server has them."""
    parts = np.split(vector, np.cumsum(SIZES)[:-1])
    return {t.name: part.reshape(t.shape) for t, part in zip(LAYOUT.parameters, parts, strict=True)}


def normal(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


# --- the algorithms by hand, on sets of positions in the full model


def layers() -> list[range]:
    ends = np.cumsum([0, *SIZES]).tolist()
    return [range(start, end) for start, end in itertools.pairwise(ends)]


def top(entries: dict[int, float], k: int, least: list[tuple[range, int]]) -> set[int]:
    order = sorted(entries, key=lambda i: (-abs(entries[i]), i))
    chosen = {i for layer, n in least for i in [j for j in order if j in layer][:n]}
    return chosen | set([i for i in order if i not in chosen][: max(0, k - len(chosen))])


class ByHand:
    """Two clients and a server, a position at a time."""

    def __init__(self, phi: tuple[float, float], minima: tuple[float, float], beta: float, warmup: int) -> None:
        self.phi, self.minima, self.beta, self.warmup = phi, minima, beta, warmup
        self.mask: set[int] = set()
        self.errors = [[np.float32(0)] * D, [np.float32(0)] * D]
        self.w = [0.0] * D

    def client(self, n: int, round: int, delta: np.ndarray, kept: list[int]) -> dict[int, np.float32]:
        error = self.errors[n]
        wanted = {i: delta[i] + error[i] for i in kept}  # line 9
        rest = {i: float(x) for i, x in wanted.items() if i not in self.mask}
        least = [(layer, math.ceil(self.minima[1] * len(set(layer) & set(kept)))) for layer in layers()]
        local = set(rest) if round <= self.warmup else top(rest, round_(self.phi[1] * len(kept)), least)  # line 10
        sent = {i: x for i, x in wanted.items() if i in self.mask or i in local}  # line 11
        for i in kept:
            error[i] = np.float32(0) if i in sent else wanted[i]  # line 13
        return sent

    def server(self, round: int, sent: list[dict[int, np.float32]]) -> list[float]:
        change = [sum(float(s.get(i, 0)) for s in sent) / len(sent) for i in range(D)]  # line 15
        least = [(layer, math.ceil(self.minima[0] * len(layer))) for layer in layers()]
        ready = round >= self.warmup
        self.mask = top(dict(enumerate(change)), round_(self.phi[0] * D), least) if ready else set()
        self.w = [self.beta * w + g for w, g in zip(self.w, change, strict=True)]
        return self.w if self.beta else change


def round_(x: float) -> int:
    return max(1, round(x))


@pytest.mark.parametrize("contexts", [(FULL, FULL), (SOME, OTHERS)], ids=["full", "patterns"])
@pytest.mark.parametrize(
    ("fairness", "minima"), [("none", (0, 0)), ("plf", (0.04, 0)), ("lf", (0.04, 0.03)), ("lf", (0.3, 0.2))]
)
@pytest.mark.parametrize(("momentum", "warmup"), [(0.0, 0), (0.9, 0), (0.5, 2)])
def test_rounds_of_two_clients_are_the_paper_s_by_hand(
    contexts: tuple[Context, Context],
    fairness: str,
    minima: tuple[float, float],
    momentum: float,
    warmup: int,
) -> None:
    given = {
        "global_minimum": minima[0] or 1,
        "local_minimum": minima[1] or 1,
        "fairness": fairness,
        "warmup": warmup,
    }
    own = {f"tcs.{key}": value for key, value in {"global_ratio": 0.15, "local_ratio": 0.05, **given}.items()}
    recipe = open_recipe("tcs", {**own, "server.momentum": momentum})
    server = recipe.compressor
    assert isinstance(server, Tcs)
    hand = ByHand((0.15, 0.05), minima, momentum, warmup)
    residuals = [np.zeros(D, dtype=np.float32), np.zeros(D, dtype=np.float32)]
    for number in range(1, 7):
        summed, sent = np.zeros(D), []
        for n in range(2):
            context = Context(contexts[n].selection, number, server.shared())
            kept = context.kept(np.arange(D))
            delta = normal(D, 10 * number + n) * np.linspace(0.2, 2, D, dtype=np.float32)
            done = server.compress(delta[kept], {"residual": residuals[n][kept]}, context, Stream(0))
            back = Tcs.decompress(memoryview(done.section), context)
            residuals[n][kept] = done.memory["residual"]
            summed[kept] += back
            sent.append(hand.client(n, number, delta, kept.tolist()))
            assert dict(zip(kept[back != 0].tolist(), back[back != 0], strict=True)) == sent[-1]
            np.testing.assert_array_equal(residuals[n], hand.errors[n])
        change = recipe.server_update(number, tensors(summed / 2))
        expected = hand.server(number, sent)
        np.testing.assert_array_equal(np.concatenate([g.reshape(-1) for g in change.values()]), expected)
        assert server.shared() == (mask_of(sorted(hand.mask), D) if hand.mask else b"")
        assert bool(hand.mask) == (number >= warmup)


def test_fairness_gives_every_layer_its_share_and_no_more_than_k_in_all() -> None:
    server = tcs(global_ratio=0.2, fairness="plf", global_minimum=0.05)
    steep = np.where(np.arange(D) < SIZES[0], 1.0, 0.0) + 1e-3 * np.arange(D) / D  # the first layer has it all
    server.server_update(1, tensors(steep))
    mask = Tcs.decompress(memoryview(ones(server.shared())), Context(FULL.selection, 2, server.shared())) == 1
    counts = [int(part.sum()) for part in np.split(mask, np.cumsum(SIZES)[:-1])]
    assert all(count >= 0.05 * size for count, size in zip(counts, SIZES, strict=True))
    assert counts[1:] == [math.ceil(0.05 * size) for size in SIZES[1:]]
    assert sum(counts) == round(0.2 * D)


def ones(shared: bytes) -> bytes:
    """A section that holds a 1 for every entry of the mask, and one local entry of 0: the first it may have."""
    (k,) = struct.unpack_from("<I", shared, 1)
    blocks = D - k  # of one entry each
    positions = np.packbits([1] + [0] * blocks).tobytes()
    for first in range(k + 1):
        entries = [1.0] * first + [0.0] + [1.0] * (k - first)
        section = (
            struct.pack("<BBII", 0, 0, zlib.crc32(shared), 1) + positions + struct.pack(f"<{k + 1}f", *entries)
        )
        vector = Tcs.decompress(memoryview(section), Context(FULL.selection, 2, shared))
        if vector[:first].all():
            return section
    raise AssertionError


def test_masks_have_k_entries_of_equal_ones_the_first() -> None:
    server = tcs(global_ratio=0.1)
    server.server_update(1, tensors(np.zeros(D)))
    assert server.shared() == mask_of(list(range(round(0.1 * D))), D)


# --- the section


def test_only_local_entries_have_positions_and_those_skip_the_global_mask() -> None:
    values = np.arange(20, dtype=np.float32) - 10
    values[3] = -9.5
    shared = mask_of([0, 1, 2, 7], 20)
    done = tcs(local_ratio=0.1).compress(
        values, {"residual": np.zeros(20, dtype=np.float32)}, of_entries(20, shared=shared), Stream(0)
    )
    # Of the 16 others, -9.5 (entry 3) and 9 (entry 19) are the first and the last; a position in 8 has 3 bits.
    assert done.section == (
        struct.pack("<BBII", 0, 3, zlib.crc32(shared), 2)
        + bytes([0b10000111, 0b10000000])
        + struct.pack("<6f", -10, -9, -8, -9.5, -3, 9)
    )
    np.testing.assert_array_equal(np.flatnonzero(values - done.memory["residual"]), [0, 1, 2, 3, 7, 19])


def test_a_dense_round_sends_everything_as_float32_without_positions() -> None:
    values, residual = normal(50), normal(50, 1)
    done = tcs(warmup=3, bits=5).compress(values, {"residual": residual}, of_entries(50, round=3), Stream(0))
    assert done.section == struct.pack("<BBII", 0, 0, 0, 50) + (values + residual).tobytes()
    assert not done.memory["residual"].any()


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("bits", [2, 5, 8])
def test_quantised_entries_are_one_vector_of_fractional(bits: int, feedback: bool) -> None:
    values, context = normal(300), of_entries(100, 200, shared=mask_of(list(range(0, 300, 10)), 300))
    compressor = tcs(bits=bits, local_ratio=0.05, quantisation_feedback=feedback)
    done = compressor.compress(values, {"residual": np.zeros(300, dtype=np.float32)}, context, Stream(0))
    back = DECODERS["tcs"](memoryview(done.section), context)
    sent = back != 0
    assert np.count_nonzero(sent) == 30 + 15
    entries = len(done.section) - 1 - 4 * 2 ** (bits - 1) - math.ceil(45 * bits / 8)
    np.testing.assert_array_equal(back[sent], decode_fractional(memoryview(done.section)[entries:], 45))
    np.testing.assert_array_equal(done.memory["residual"][~sent], values[~sent])
    np.testing.assert_array_equal(done.memory["residual"][sent], (values - back)[sent] if feedback else 0)


@pytest.mark.parametrize(("bits", "budget"), [(32, 0.364), (5, 4 * 0.01675)])
def test_bits_an_entry_are_the_paper_s_budget(bits: int, budget: float) -> None:
    """The budgets of Table I, from log2(1/phi) + 2 bits a position, for one local step."""
    n = 2_000_000
    shared = mask_of(list(range(0, n, 100)), n)
    residual = np.zeros(n, dtype=np.float32)
    section = (
        tcs(bits=bits).compress(normal(n), {"residual": residual}, of_entries(n, shared=shared), Stream(0)).section
    )
    assert 8 * len(section) / n == pytest.approx(budget, rel=0.01)


# --- strangers' bytes


def test_a_section_under_another_mask_is_refused() -> None:
    shared = mask_of([1, 5, 30], 40)
    residual = np.zeros(40, dtype=np.float32)
    section = tcs().compress(normal(40), {"residual": residual}, of_entries(40, shared=shared), Stream(0)).section
    for other in (b"", mask_of([1, 5, 31], 40), mask_of([1, 5], 40)):
        with pytest.raises(FrameError, match="another global mask") as caught:
            DECODERS["tcs"](memoryview(section), of_entries(40, shared=other))
        assert caught.value.code == "values"


@given(
    section=st.binary(max_size=60), shared=st.binary(max_size=12), count=st.integers(0, 60), k=st.integers(0, 9)
)
def test_hostile_bytes_under_any_mask_are_a_vector_or_refused(
    section: bytes, shared: bytes, count: int, k: int
) -> None:
    own = mask_of(sorted({count * i // 9 for i in range(k)}), count) if count else b""
    for mask in (shared, own):
        for sealed in (section, section[:2] + struct.pack("<I", zlib.crc32(mask)) + section[2:]):
            with contextlib.suppress(FrameError):
                vector = DECODERS["tcs"](memoryview(sealed), of_entries(count, shared=mask))
                assert vector.shape == (count,)


@pytest.mark.parametrize("shared", [b"\0", mask_of([3, 900], 1000), mask_of([0, 1], 8) + b"\0"])
def test_a_device_refuses_a_mask_that_is_none(shared: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        tcs().compress(normal(8), {"residual": normal(8)}, of_entries(8, shared=shared), Stream(0))
    assert caught.value.code == "values"


@pytest.mark.parametrize("ratio", [1e-4, 0.1, 0.3, 0.382, 0.5, 0.7, 1.0])
def test_a_mask_of_any_share_fits_a_model_frame(ratio: float) -> None:
    server = tcs(global_ratio=ratio)
    for change in (np.arange(2_000_000.0), np.random.default_rng(0).standard_normal(2_000_000)):
        server.server_update(1, {"t": change})
        assert len(server.shared()) <= 2_000_000 // 4  # bytes that largest_frame has room for


# --- the server's memory


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_another_server_goes_on_from_what_was_learned(rounds: int) -> None:
    one, other = tcs(warmup=1), tcs(warmup=1)
    for number in range(1, rounds + 1):
        one.server_update(number, tensors(normal(D, number).astype(np.float64)))
    other.load_state_dict(LAYOUT, one.state_dict())
    assert other.shared() == one.shared()
    last = tensors(normal(D, 9).astype(np.float64))
    for server in (one, other):
        for name, array in server.server_update(rounds + 1, dict(last)).items():
            np.testing.assert_array_equal(array, last[name])
    assert other.shared() == one.shared() != b""
