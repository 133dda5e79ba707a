"""Content transfer over links that lose, duplicate, reorder and damage chunks."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_fl.core.content import CHUNK_SIZE, Missing, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.transport.transfer import WINDOW, Fetcher, chunks_of, cut

SIZES = [1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 45 * CHUNK_SIZE + 17]


class Link:
    """A fetcher, the wants it sent, and a clock to turn by hand."""

    def __init__(self) -> None:
        self.wants: list[Missing] = []
        self.now = 0.0
        self.fetcher = Fetcher(self.wants.append, clock=lambda: self.now)


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_content_arrives_whole(size: int) -> None:
    link, data = Link(), content(size)
    assert link.fetcher.want(ref_of(data)) is None
    got = None
    while link.wants:
        for index, chunk in chunks_of(cut(data), link.wants.pop(0)):
            got = link.fetcher.chunk(ref_of(data).digest, index, chunk) or got
    assert got == data


def test_empty_content_needs_no_transfer() -> None:
    link = Link()
    assert link.fetcher.want(ref_of(b"")) == b""
    assert not link.wants


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.floats(0, 0.6))
def test_content_arrives_over_a_link_that_loses_duplicates_and_reorders(seed: int, loss: float) -> None:
    link, data, rng = Link(), content(45 * CHUNK_SIZE + 17), random.Random(seed)
    digest = ref_of(data).digest
    link.fetcher.want(ref_of(data))
    got = None
    for _ in range(10_000):
        arriving = [c for want in link.wants for c in chunks_of(cut(data), want) * 2 if rng.random() > loss]
        link.wants.clear()
        rng.shuffle(arriving)
        for index, chunk in arriving:
            got = link.fetcher.chunk(digest, index, chunk) or got
        if got is not None:
            break
        link.now += 40.0
        link.fetcher.tick()
    assert got == data


def test_no_more_than_a_window_is_asked_for_at_a_time() -> None:
    link, data = Link(), content(45 * CHUNK_SIZE)
    link.fetcher.want(ref_of(data))
    assert [len(w.chunks) for w in link.wants] == [WINDOW]
    assert len(chunks_of(cut(data), Missing(ref_of(data).digest, tuple(range(45))))) == WINDOW


def test_a_stall_is_asked_about_again_ever_more_rarely() -> None:
    link, data = Link(), content(3 * CHUNK_SIZE)
    link.fetcher.want(ref_of(data))
    asked = []
    for second in range(1, 200):
        link.now = float(second)
        before = len(link.wants)
        link.fetcher.tick()
        if len(link.wants) > before:
            asked.append(second)
    pauses = [b - a for a, b in itertools.pairwise(asked)]
    assert asked[0] == 3
    assert pauses == sorted(pauses)
    assert max(pauses) <= 31


def test_a_reconnect_asks_at_once_for_what_is_missing_only() -> None:
    link, data = Link(), content(3 * CHUNK_SIZE)
    digest = ref_of(data).digest
    link.fetcher.want(ref_of(data))
    link.fetcher.chunk(digest, 1, data[CHUNK_SIZE : 2 * CHUNK_SIZE])
    link.wants.clear()
    link.fetcher.resume()
    assert link.wants == [Missing(digest, (0, 2))]


def test_damaged_content_is_refused_and_fetched_again() -> None:
    link, data = Link(), content(CHUNK_SIZE + 5)
    digest = ref_of(data).digest
    link.fetcher.want(ref_of(data))
    link.fetcher.chunk(digest, 0, bytes(CHUNK_SIZE))
    with pytest.raises(FrameError, match="arrived damaged") as caught:
        link.fetcher.chunk(digest, 1, data[CHUNK_SIZE:])
    assert caught.value.code == "digest"
    link.now = 3.9
    link.fetcher.tick()
    assert len(link.wants) == 1
    link.now = 4.1
    link.fetcher.tick()
    assert link.wants[1:] == [Missing(digest, (0, 1))]
    link.fetcher.chunk(digest, 0, data[:CHUNK_SIZE])
    assert link.fetcher.chunk(digest, 1, data[CHUNK_SIZE:]) == data


def test_a_chunk_of_another_size_is_refused_and_strays_are_ignored() -> None:
    link, data = Link(), content(CHUNK_SIZE + 5)
    digest = ref_of(data).digest
    assert link.fetcher.chunk(digest, 0, b"nobody asked") is None
    link.fetcher.want(ref_of(data))
    with pytest.raises(FrameError, match="not its size"):
        link.fetcher.chunk(digest, 1, b"too long for the last chunk")
    assert link.fetcher.chunk(digest, 7, b"beyond the end") is None


def test_a_sender_ignores_chunks_that_are_not_there() -> None:
    assert chunks_of(cut(b"abc"), Missing(ref_of(b"abc").digest, (-1, 0, 1, 99))) == [(0, b"abc")]


def test_a_content_is_cut_into_chunks_that_make_it_up() -> None:
    for size in (0, *SIZES):
        assert b"".join(cut(content(size))) == content(size)
        assert len(cut(content(size))) == ref_of(content(size)).chunks


def arrives(link: Link, data: bytes, index: int) -> bytes | None:
    return link.fetcher.chunk(ref_of(data).digest, index, cut(data)[index])


def test_a_slow_link_is_not_asked_for_everything_twice() -> None:
    link, data = Link(), content(30 * CHUNK_SIZE)
    link.fetcher.want(ref_of(data))
    seconds, got = 3.5, None  # a chunk
    for index in range(30):
        for _ in range(35):
            link.now += seconds / 35
            link.fetcher.tick()
        got = arrives(link, data, index)
    assert got == data
    asked = [chunk for want in link.wants for chunk in want.chunks]
    assert len(asked) <= 31


def test_a_want_that_was_lost_costs_no_more_than_one_pause() -> None:
    link, data = Link(), content(30 * CHUNK_SIZE)
    link.fetcher.want(ref_of(data))
    link.wants.clear()
    link.now = 2.1
    link.fetcher.tick()
    (again,) = link.wants
    assert again.chunks == (WINDOW - 1,)
    arrives(link, data, WINDOW - 1)
    assert link.wants[1].chunks == (*range(WINDOW - 1), WINDOW)
