import hashlib
from statistics import mean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.core.randomness import Stream, draw_ahead, philox4x32, stream_key

WORDS = st.integers(0, 2**32 - 1)
KEYS = st.integers(0, 2**64 - 1)


def reference_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as the paper writes it, on Python integers and all four counter words."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


# Random123's published known answers (kat_vectors, philox4x32, 10 rounds).
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_reference_gives_the_published_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    assert reference_philox(counter, key) == answer


def test_philox_gives_the_published_answer() -> None:
    words = philox4x32(0, np.zeros(1, dtype=np.uint64))
    assert words.tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]
    assert words.dtype == np.uint32


@given(KEYS, st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_philox_is_the_reference(key: int, blocks: list[int]) -> None:
    words = philox4x32(key, np.array(blocks, dtype=np.uint64))
    expected = [reference_philox([b % 2**32, b >> 32, 0, 0], [key % 2**32, key >> 32]) for b in blocks]
    assert words.tolist() == expected


@given(st.lists(KEYS, max_size=5), st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_philox_of_several_keys_is_that_of_each(keys: list[int], blocks: list[int]) -> None:
    counters = np.array(blocks, dtype=np.uint64)
    words = philox4x32(np.array(keys, dtype=np.uint64), counters)
    assert words.shape == (len(keys), len(blocks), 4)
    assert words.tolist() == [philox4x32(key, counters).tolist() for key in keys]


@given(st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=5), st.integers(0, 700))
def test_streams_that_are_drawn_ahead_give_the_same_words(before: list[tuple[int, int]], n: int) -> None:
    """Also those that gave some before, and those that give more than was drawn."""
    apart, together = [Stream(key) for key, _ in before], [Stream(key) for key, _ in before]
    for streams in (apart, together):
        for stream, (_, count) in zip(streams, before, strict=True):
            stream.uint32(count)
    draw_ahead(together)
    assert [s.uint32(n).tolist() for s in together] == [s.uint32(n).tolist() for s in apart]


@given(KEYS, st.lists(st.integers(0, 9), max_size=5))
def test_every_draw_starts_at_a_whole_block(key: int, sizes: list[int]) -> None:
    stream, block = Stream(key), 0
    for n in sizes:
        used = -(-n // 4)
        words = [
            w for b in range(block, block + used) for w in reference_philox([b, 0, 0, 0], [key % 2**32, key >> 32])
        ]
        assert stream.uint32(n).tolist() == words[:n]
        block += used


def test_stream_key_is_the_documented_hash() -> None:
    digest = hashlib.sha256(b"edge-fl|7|phone-3|12|pattern|2").digest()
    key = stream_key(seed=7, client="phone-3", round=12, purpose="pattern", index=2)
    assert key == sum(byte << 8 * i for i, byte in enumerate(digest[:8]))
    assert Stream.of(seed=7, client="phone-3", round=12, purpose="pattern", index=2).uint32(5).tolist() == (
        Stream(key).uint32(5).tolist()
    )


def test_every_field_of_a_key_matters() -> None:
    keys = {
        stream_key(seed=0, purpose="a"),
        stream_key(seed=1, purpose="a"),
        stream_key(seed=0, purpose="b"),
        stream_key(seed=0, purpose="a", client="c"),
        stream_key(seed=0, purpose="a", round=1),
        stream_key(seed=0, purpose="a", index=1),
    }
    assert len(keys) == 6


@given(KEYS, st.integers(0, 300))
def test_permutation_sorts_the_words(key: int, n: int) -> None:
    words = Stream(key).uint32(n).tolist()
    assert Stream(key).permutation(n).tolist() == sorted(range(n), key=lambda i: (words[i], i))


def test_equal_words_keep_their_order() -> None:
    """Among 300,000 words some ten are equal, and a sort that is not stable shows."""
    words, order = Stream(1).uint32(300_000), Stream(1).permutation(300_000)
    assert len(np.unique(words)) < 300_000
    np.testing.assert_array_equal(order, np.lexsort((np.arange(300_000), words)))


@given(KEYS, st.integers(0, 100).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_subset_is_the_head_of_a_permutation_in_ascending_order(key: int, sizes: tuple[int, int]) -> None:
    n, k = sizes
    assert Stream(key).subset(n, k).tolist() == sorted(Stream(key).permutation(n)[:k].tolist())


@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_normal_draws_are_box_muller_over_the_words(n: int) -> None:
    pairs = -(-n // 2)
    u = [(w + 0.5) / 2**32 for w in Stream(5).uint32(2 * pairs).tolist()]
    radius = [(-2 * np.log(v)) ** 0.5 for v in u[:pairs]]
    expected = [r * f(2 * np.pi * a) for f in (np.cos, np.sin) for r, a in zip(radius, u[pairs:], strict=True)]
    np.testing.assert_allclose(Stream(5).normal(n), expected[:n], rtol=1e-12)


def test_normal_draws_have_mean_0_and_deviation_1() -> None:
    draws = Stream.of(seed=0, purpose="test").normal(100_000).tolist()
    assert abs(mean(draws)) < 0.01  # 3 standard errors
    assert abs(pstdev(draws) - 1) < 0.01
