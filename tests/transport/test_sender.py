"""What a sender publishes, and when, to a connection that takes its time."""

import pytest

from edge_fl.core.content import CHUNK_SIZE, Missing, ref_of
from edge_fl.transport.transfer import Sender, cut

CONTENT = bytes(CHUNK_SIZE + 1)
WANT = Missing(ref_of(CONTENT).digest, (0, 1))


class Line:
    """A connection on which a publish leaves when it is told to, and a sender."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.left: set[int] = set()
        self.sender = Sender(self._publish, lambda side, _digest, index: f"{side}/{index}")

    def _publish(self, topic: str, _payload: bytes) -> object:
        number = len(self.published)
        self.published.append(topic)
        return lambda: number in self.left

    def serve(self, side: str) -> int:
        return self.sender.serve(side, cut(CONTENT), WANT)


@pytest.fixture
def line() -> Line:
    return Line()


def test_a_chunk_is_published_once_until_it_has_left(line: Line) -> None:
    assert line.serve("a") == len(CONTENT)
    assert line.serve("a") == 0
    assert line.serve("b") == len(CONTENT)
    line.left = {0, 1}
    assert line.serve("a") == len(CONTENT)
    assert line.serve("b") == 0
    assert line.published == ["a/0", "a/1", "b/0", "b/1", "a/0", "a/1"]


def test_what_has_left_is_known_though_what_was_published_before_has_not(line: Line) -> None:
    line.serve("a")
    line.serve("b")
    line.left = {2, 3}
    assert line.serve("b") == len(CONTENT)
    assert line.serve("b") == 0
    assert line.published[4:] == ["b/0", "b/1"]


def test_only_so_many_chunks_are_on_their_way_at_a_time_and_the_others_wait_in_order(line: Line) -> None:
    sides = [f"device-{i}" for i in range(100)]
    asked = [f"{side}/{index}" for side in sides for index in (0, 1)]
    for side in sides * 2:  # whoever waits asks again
        line.serve(side)
    on_their_way = len(line.published)
    assert 20 <= on_their_way <= 100
    assert line.sender.waiting
    line.sender.advance()
    assert len(line.published) == on_their_way
    line.left = {0, 1, 2}
    line.sender.advance()
    assert len(line.published) == on_their_way + 3
    line.left = set(range(200))
    while line.sender.waiting:
        line.sender.advance()
    assert line.published == asked
