"""Each compressor against what its paper says, written out plainly, and against bytes that nobody compressed."""

import contextlib
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.compressors.base import DECODERS, Compressed, compressor_names, open_compressor
from edge_fl.compressors.fedpaq import FedPaqParameters
from edge_fl.core.errors import ConfigError, FrameError, RunError
from edge_fl.core.randomness import Stream
from tests.compressors.contexts import of_entries

NAMES = ["dgc", "fedpaq", "fractional", "randk", "signsgd", "stc", "tcs", "topk"]
FEEDBACK = ["randk", "signsgd", "stc", "topk"]
LARGEST = float(np.finfo(np.float32).max)
numbers = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, LARGEST, -LARGEST]),
)
vectors = st.lists(numbers, max_size=40).map(lambda items: np.array(items, dtype=np.float32))


def compress(
    name: str,
    values: np.ndarray,
    parameters: dict[str, object] | None = None,
    *,
    memory: dict[str, np.ndarray] | None = None,
    round: int = 1,
    key: int = 5,
) -> tuple[Compressed, np.ndarray]:
    """What is compressed, and what the other end makes of it."""
    compressor = open_compressor(name, parameters or {})
    held = memory or {name: np.zeros(len(values), dtype=np.float32) for name in compressor.memory}
    context = of_entries(len(values), round=round)
    done = compressor.compress(values, held, context, Stream(key))
    return done, DECODERS[name](memoryview(done.section), context)


def normal(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def test_all_are_found_by_name() -> None:
    assert set(NAMES) <= set(compressor_names())


@pytest.mark.parametrize("name", NAMES)
@given(values=vectors)
def test_any_finite_vector_is_sent_and_remembered_as_finite_numbers(name: str, values: np.ndarray) -> None:
    before = values.copy()
    done, back = compress(name, values)
    np.testing.assert_array_equal(values, before)
    assert back.dtype == np.float32
    assert back.shape == values.shape
    assert np.isfinite(back).all()
    for vector in done.memory.values():
        assert vector.dtype == np.float32
        assert vector.shape == values.shape
        assert np.isfinite(vector).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 7])
def test_zeros_come_back_as_zeros(name: str, n: int) -> None:
    done, back = compress(name, np.zeros(n, dtype=np.float32))
    np.testing.assert_array_equal(back, np.zeros(n))
    for vector in done.memory.values():
        np.testing.assert_array_equal(vector, np.zeros(n))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_diverged_update_is_not_sent(name: str, wrong: float) -> None:
    with pytest.raises(RunError, match="NaN or an infinity"):
        compress(name, np.array([1.0, wrong, 0.0], dtype=np.float32))


@pytest.mark.parametrize("name", ["dgc", "randk", "topk"])
def test_all_kept_is_lossless(name: str) -> None:
    values = normal(50)
    done, back = compress(name, values, {"ratio": 1.0} | ({"warmup": []} if name == "dgc" else {}))
    np.testing.assert_array_equal(back, values)
    for vector in done.memory.values():
        np.testing.assert_array_equal(vector, np.zeros(50))


@pytest.mark.parametrize("name", FEEDBACK)
@given(values=vectors, data=st.data())
def test_what_is_sent_and_what_is_remembered_are_the_sum(
    name: str, values: np.ndarray, data: st.DataObject
) -> None:
    same = st.lists(numbers, min_size=len(values), max_size=len(values))
    residual = np.array(data.draw(same), dtype=np.float32)
    with np.errstate(over="ignore"):
        total = np.clip(values + residual, -LARGEST, LARGEST)
    done, back = compress(name, values, {"ratio": 0.3} if name != "signsgd" else {}, memory={"residual": residual})
    if name in ("randk", "topk"):  # a number is sent or remembered, whole
        np.testing.assert_array_equal(back + done.memory["residual"], total)
    np.testing.assert_array_equal(done.memory["residual"], total - back)


@given(vectors, st.sampled_from([0.01, 0.3, 0.5, 1.0]), st.sampled_from(["golomb", "block"]))
def test_topk_sends_the_k_largest_of_equal_ones_the_first(values: np.ndarray, ratio: float, code: str) -> None:
    _, back = compress("topk", values, {"ratio": ratio, "positions": code})
    k = min(len(values), max(1, round(ratio * len(values))))
    order = sorted(range(len(values)), key=lambda i: (-abs(float(values[i])), i))
    expected = np.zeros(len(values), dtype=np.float32)
    expected[order[:k]] = values[order[:k]]
    np.testing.assert_array_equal(back, expected)


def test_topk_s_section_is_a_header_the_values_and_the_positions() -> None:
    values = np.zeros(12, dtype=np.float32)
    values[[0, 2, 9]] = [3, -4, 5]
    done, _ = compress("topk", values, {"ratio": 0.25, "positions": "block"})
    assert done.section == struct.pack("<BBI3f", 1, 2, 3, 3, -4, 5) + bytes([0b10011000, 0b10100000])


def test_randk_sends_what_the_key_on_the_wire_draws_and_draws_anew() -> None:
    values = normal(100)
    done, back = compress("randk", values, {"ratio": 0.07})
    assert len(done.section) == 8 + 4 * 7
    (key,) = struct.unpack_from("<Q", done.section)
    kept = Stream(key).subset(100, 7)
    np.testing.assert_array_equal(np.flatnonzero(back), kept)
    np.testing.assert_array_equal(back[kept], values[kept])
    assert done.section[:8] != compress("randk", values, {"ratio": 0.07}, key=6)[0].section[:8]


@given(vectors, st.sampled_from([0.01, 0.3, 1.0]))
def test_stc_is_ternary_with_the_mean_magnitude(values: np.ndarray, ratio: float) -> None:
    _, back = compress("stc", values, {"ratio": ratio})
    k = min(len(values), max(1, round(ratio * len(values))))
    order = sorted(range(len(values)), key=lambda i: (-abs(float(values[i])), i))[:k]
    order = [i for i in order if values[i]]
    mu = math.fsum(abs(float(values[i])) for i in order) / len(order) if order else 0.0
    expected = np.zeros(len(values))
    expected[order] = [math.copysign(mu, values[i]) for i in order]
    np.testing.assert_allclose(back, expected, rtol=1e-6, atol=1.5e-45)
    assert len(np.unique(np.abs(back[back != 0]))) <= 1


def dgc_by_entry(
    rounds: list[np.ndarray], ratios: list[float], momentum: float, clip: float
) -> list[list[np.float32]]:
    """What DGC sends round by round, an entry at a time."""
    n = len(rounds[0])
    u, v, sent = [np.float32(0)] * n, [np.float32(0)] * n, []
    for values, ratio in zip(rounds, ratios, strict=True):
        norm = math.sqrt(sum(float(x) ** 2 for x in values))
        factor = np.float32(clip / norm) if norm > clip else np.float32(1)
        for i in range(n):
            u[i] = np.float32(momentum) * u[i] + values[i] * factor
            v[i] = v[i] + u[i]
        order = sorted(range(n), key=lambda i: (-abs(float(v[i])), i))[: max(1, round(ratio * n))]
        sent.append([v[i] if i in order else np.float32(0) for i in range(n)])
        for i in order:
            u[i] = v[i] = np.float32(0)
    return sent


@pytest.mark.parametrize("clip", [7.0, 1e9])
def test_dgc_is_the_paper_s_entry_by_entry_through_the_warm_up(clip: float) -> None:
    rounds = [normal(80, seed) * np.float32(1 + seed % 3) for seed in range(9)]
    ratios = [0.25, 0.0625, 0.015625, 0.015, *[0.01] * 5]
    parameters = {"ratio": 0.01, "warmup": ratios[:4], "momentum": 0.8, "clip": clip}
    memory = {name: np.zeros(80, dtype=np.float32) for name in ("momentum", "accumulated")}
    for r, expected in enumerate(dgc_by_entry(rounds, ratios, 0.8, clip), start=1):
        done, back = compress("dgc", rounds[r - 1], parameters, memory=memory, round=r)
        np.testing.assert_array_equal(back, np.array(expected))
        memory = done.memory


def test_dgc_keeps_25_6_1_5_0_4_and_then_0_1_percent() -> None:
    values = normal(100_000)
    kept = [np.count_nonzero(compress("dgc", values, round=r)[1]) for r in (1, 2, 3, 4, 5, 50)]
    assert kept == [25_000, 6250, 1562, 400, 100, 100]


def test_dgc_s_warm_up_keeps_no_fewer_than_its_ratio() -> None:
    values = normal(1000)
    kept = [np.count_nonzero(compress("dgc", values, {"ratio": 0.05}, round=r)[1]) for r in (1, 2, 3, 4, 5)]
    assert kept == [250, 62, 50, 50, 50]


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_fedpaq_is_right_on_average_and_errs_by_less_than_a_level(bits: int, norm: str) -> None:
    values, draws = normal(40), 1500
    scale = float(np.abs(values).max() if norm == "max" else np.linalg.norm(values))
    level = 2 * scale / max(1, 2**bits - 2)
    backs = np.stack([compress("fedpaq", values, {"bits": bits, "norm": norm}, key=k)[1] for k in range(draws)])
    errors = backs.astype(np.float64) - values
    assert np.abs(errors).max() <= level * (1 + 1e-6)
    # A rounding between two levels has at most a quarter of the squared level as its variance.
    assert np.abs(errors.mean(axis=0)).max() <= 4 * level / 2 / math.sqrt(draws)


@given(vectors, st.integers(1, 8))
def test_fedpaq_sends_levels_and_the_scale_exactly(values: np.ndarray, bits: int) -> None:
    done, back = compress("fedpaq", values, {"bits": bits})
    scale = np.abs(values).max(initial=0)
    assert done.section[:5] == struct.pack("<Bf", bits, scale)
    assert len(done.section) == 5 + math.ceil(bits * len(values) / 8)
    extremes = np.abs(values) == scale
    np.testing.assert_array_equal(back[extremes], values[extremes])
    if bits > 1:
        assert not back[values == 0].any()


def test_signsgd_sends_the_mean_magnitude_and_remembers_only_with_feedback() -> None:
    values = np.array([1, -2, 3, 0, 0, -6, 0, 0, -4], dtype=np.float32)
    scale = np.float32(16 / 9)
    done, back = compress("signsgd", values, {"error_feedback": False})
    assert done.memory == {}
    for settings in ({"error_feedback": False}, {"step": 0.1}):
        assert open_compressor("signsgd", settings).memory == ()
    assert done.section == struct.pack("<f", scale) + bytes([0b01000100, 0b10000000])
    np.testing.assert_array_equal(back, np.where(values < 0, -scale, scale))
    with_feedback, _ = compress("signsgd", values)
    assert with_feedback.section == done.section
    np.testing.assert_array_equal(with_feedback.memory["residual"], values - back)


def fractional_by_entry(values: np.ndarray, intervals: int) -> list[float]:
    """Eq. (20) to (22), zeros in an interval of their own; ends as floats, so values lie clear of them."""
    magnitudes = [abs(float(x)) for x in values]
    present = [m for m in magnitudes if m]
    shared = intervals - (len(present) < len(magnitudes))
    u_max, u_min = max(present), min(present)
    sigma = (u_min / u_max) ** (1 / shared)
    where = []
    for m in magnitudes:
        p = next((p for p in range(1, shared) if sigma**p * u_max <= m), shared) if m else intervals
        where.append(p)
    means = {p: np.mean([m for m, at in zip(magnitudes, where, strict=True) if at == p]) for p in set(where)}
    return [math.copysign(means[p], x) for p, x in zip(where, values, strict=True)]


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize("zeros", [0, 30])
def test_fractional_is_eq_20_to_22_and_keeps_the_bound_of_eq_23(bits: int, zeros: int) -> None:
    values = normal(300, seed=4)
    values[:zeros] = 0
    done, back = compress("fractional", values, {"bits": bits})
    assert len(done.section) == 1 + 4 * 2 ** (bits - 1) + math.ceil(300 * bits / 8)
    np.testing.assert_allclose(back, fractional_by_entry(values, 2 ** (bits - 1)), rtol=1e-6)
    magnitudes = np.abs(values[values != 0])
    sigma = (magnitudes.min() / magnitudes.max()) ** (1 / (2 ** (bits - 1) - bool(zeros)))
    assert (np.abs(back - values) <= (1 - sigma) / sigma * np.abs(values) * (1 + 1e-5)).all()


def test_fractional_is_exact_where_all_magnitudes_are_equal() -> None:
    values = np.array([2, -2, 2, 0, -2], dtype=np.float32)
    np.testing.assert_array_equal(compress("fractional", values)[1], values)


@pytest.mark.parametrize("name", NAMES)
@given(section=st.binary(max_size=80), count=st.integers(0, 60))
def test_hostile_bytes_are_a_vector_or_refused(name: str, section: bytes, count: int) -> None:
    decode_or_refuse(name, section, count)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_section_with_bytes_changed_is_a_vector_or_refused(name: str, data: st.DataObject) -> None:
    values = normal(60, seed=1)
    section = bytearray(compress(name, values)[0].section)
    for _ in range(data.draw(st.integers(1, 4))):
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(name, bytes(section), data.draw(st.sampled_from([0, 59, 60, 61])))


def decode_or_refuse(name: str, section: bytes, count: int) -> None:
    with contextlib.suppress(FrameError):
        vector = DECODERS[name](memoryview(section), of_entries(count))
        assert vector.shape == (count,)
        assert vector.dtype == np.float32


@pytest.mark.parametrize("name", NAMES)
def test_a_section_cut_short_or_drawn_out_is_refused(name: str) -> None:
    section = compress(name, normal(64))[0].section
    for wrong in (section[:-1], section + b"\0", b""):
        with pytest.raises(FrameError) as caught:
            DECODERS[name](memoryview(wrong), of_entries(64))
        assert caught.value.code == "values"


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("topk", struct.pack("<BBI", 2, 0, 0)),  # a third position code
        ("topk", struct.pack("<BBI", 0, 0, 2**32 - 1)),  # more entries than there are
        ("topk", struct.pack("<BBIf", 0, 40, 1, 1.0) + bytes(6)),  # a remainder too wide
        ("stc", struct.pack("<BIf", 0, 0, -1.0)),
        ("stc", struct.pack("<BIf", 0, 2**32 - 1, 1.0)),
        ("signsgd", struct.pack("<f", math.nan) + b"\0"),
        ("signsgd", struct.pack("<f", 1.0) + b"\x01"),  # a bit beyond the last entry
        ("fedpaq", struct.pack("<Bf", 0, 1.0)),
        ("fedpaq", struct.pack("<Bf", 9, 1.0) + bytes(5)),
        ("fedpaq", struct.pack("<Bf", 8, 1.0) + b"\xff" * 4),  # a level too many
        ("fedpaq", struct.pack("<Bf", 8, math.inf) + bytes(4)),
        ("fractional", struct.pack("<B", 1) + bytes(5)),
        ("fractional", struct.pack("<B2f", 2, 1.0, -1.0) + bytes(1)),
        ("randk", bytes(8 + 4 * 5)),  # five of four
        ("tcs", struct.pack("<BBII", 0, 0, 0, 5) + bytes(20)),  # five of four
        ("tcs", struct.pack("<BBII", 2, 0, 0, 4) + bytes(16)),  # a third code of entries
        ("tcs", struct.pack("<BBII", 0, 40, 0, 1) + bytes(10)),  # a position too wide
        ("tcs", struct.pack("<BBII", 0, 0, 1, 4) + bytes(16)),  # another global mask
    ],
)
def test_sections_that_nobody_wrote_are_refused(name: str, section: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        DECODERS[name](memoryview(section), of_entries(4))
    assert caught.value.code == "values"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(
            (name, {"ratio": ratio})
            for name in ("dgc", "randk", "stc", "topk")
            for ratio in (0, -0.1, 1.1, math.nan)
        ),
        ("topk", {"positions": "huffman"}),
        ("dgc", {"momentum": 1}),
        ("dgc", {"clip": 0}),
        ("dgc", {"warmup": [0.0]}),
        ("fedpaq", {"bits": 0}),
        ("fedpaq", {"bits": 9}),
        ("fedpaq", {"norm": "l1"}),
        ("fractional", {"bits": 1}),
        ("signsgd", {"colour": "red"}),
        ("tcs", {"global_ratio": 0}),
        ("tcs", {"local_ratio": 1.1}),
        ("tcs", {"local_minimum": -0.1}),
        ("tcs", {"fairness": "max"}),
        ("tcs", {"bits": 9}),
        ("tcs", {"warmup": -1}),
    ],
)
def test_parameters_that_make_no_sense_are_refused(name: str, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_compressor(name, wrong)


def test_parameters_may_come_as_text() -> None:
    assert open_compressor("fedpaq", {"bits": "4"}).parameters == FedPaqParameters(bits=4)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("fedpaq", 8), ("fractional", 5), ("signsgd", 1), ("topk", 0.401), ("randk", 0.32), ("stc", 0.091)],
)
def test_bits_an_entry_are_the_theory_s(name: str, bits: float) -> None:
    """A sparse entry costs its value (32 bits, or a sign), and 8.1 bits for its place at 1 % where that travels."""
    n = 269_322
    assert 8 * len(compress(name, normal(n))[0].section) / n == pytest.approx(bits, rel=0.01)
