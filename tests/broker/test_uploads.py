"""Whose update is fetched when many are offered at once."""

from pathlib import Path

import pytest

from broker.update_file import Place, UpdateFile
from broker.uploads import Uploads
from edge_fl.core.content import CHUNK_SIZE, Ref, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.transport.transfer import cut
from edge_fl.wire.messages import Want

SIZE = 2 * CHUNK_SIZE


class Hall:
    """Uploads with room for two updates, what they ask for, and a clock to turn by hand."""

    def __init__(self, folder: Path, budget: int = 2 * SIZE + 1) -> None:
        self._file = UpdateFile(folder / "updates" / "1", room=5 * SIZE)
        self.now = 0.0
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self.uploads = Uploads(self._send, self._place, budget=budget, clock=lambda: self.now)

    def _place(self, client: str, ref: Ref) -> Place:
        return self._file.place(client, ref.size)

    def _send(self, client: str, want: Want) -> None:
        self.asked.append((client, want.chunks))

    def offer(self, *clients: str) -> None:
        for client in clients:
            self.uploads.offer(client, ref_of(update(client)))

    def chunk(self, client: str, index: int) -> bytes | None:
        content = update(client)
        return self.uploads.chunk(client, ref_of(content).digest, index, cut(content)[index])


def update(client: str) -> bytes:
    return client.encode() * (SIZE // len(client))


@pytest.fixture
def hall(tmp_path: Path) -> Hall:
    return Hall(tmp_path)


def test_as_many_as_there_is_room_for_are_fetched_and_the_others_in_turn(hall: Hall) -> None:
    hall.offer("a", "b", "c", "d", "c")
    assert hall.asked == [("a", (0, 1)), ("b", (0, 1))]
    assert hall.chunk("b", 0) is None
    assert hall.chunk("c", 0) is None
    assert hall.chunk("b", 1) == update("b")
    assert hall.asked[2:] == [("c", (0, 1))]
    hall.uploads.drop("a")
    hall.uploads.tick()
    assert hall.asked[3:] == [("d", (0, 1))]
    assert hall.chunk("a", 0) is None


def test_one_that_is_larger_than_all_the_room_is_fetched_by_itself(hall: Hall) -> None:
    large = bytes(5 * SIZE)
    hall.uploads.offer("large", ref_of(large))
    hall.offer("a")
    assert hall.asked == [("large", tuple(range(8)))]
    for index, chunk in enumerate(cut(large)):
        got = hall.uploads.chunk("large", ref_of(large).digest, index, chunk)
    assert got == large
    assert hall.asked[1:] == [("large", (8, 9)), ("a", (0, 1))]


def test_slow_ones_are_fetched_together_for_only_a_part_of_each_is_on_its_way(tmp_path: Path) -> None:
    hall = Hall(tmp_path, budget=16 * CHUNK_SIZE)
    for client in ("a", "b", "c"):
        hall.uploads.offer(client, ref_of(client.encode() * 5 * SIZE))
    assert hall.asked == [("a", tuple(range(8))), ("b", tuple(range(8)))]


def test_another_update_of_a_client_takes_the_place_of_its_first(hall: Hall) -> None:
    hall.offer("a", "b")
    hall.uploads.offer("a", ref_of(b"another"))
    assert hall.asked[2:] == [("a", (0,))]
    assert hall.chunk("a", 0) is None
    assert hall.uploads.chunk("a", ref_of(b"another").digest, 0, b"another") == b"another"


def test_the_silent_make_room_and_keep_what_they_have_sent(hall: Hall) -> None:
    hall.offer("a", "b", "c")
    hall.chunk("a", 0)
    hall.now = 4.0
    hall.uploads.tick()
    hall.chunk("a", 0)  # once more: it is there, though slow
    hall.asked.clear()
    hall.now = 6.0
    hall.uploads.tick()
    assert hall.asked == [("c", (0, 1))]
    assert hall.chunk("b", 0) is None
    hall.chunk("c", 0)
    assert hall.chunk("c", 1) == update("c")
    assert hall.asked[-1] == ("b", (1,))
    assert hall.chunk("b", 1) == update("b")


def test_nobody_is_sent_away_while_nobody_waits(hall: Hall) -> None:
    hall.offer("a")
    hall.now = 100.0
    hall.uploads.tick()
    assert hall.asked == [("a", (0, 1)), ("a", (1,))]
    hall.uploads.resume()
    assert len(hall.asked) == 3


def test_what_arrives_damaged_is_fetched_again(hall: Hall) -> None:
    hall.offer("a")
    hall.chunk("a", 0)
    with pytest.raises(FrameError, match="damaged"):
        hall.uploads.chunk("a", ref_of(update("a")).digest, 1, bytes(CHUNK_SIZE))
    hall.now = 4.5
    hall.uploads.tick()
    assert hall.asked[1:] == [("a", (0, 1))]


def test_nothing_is_left_when_the_round_is_over(hall: Hall) -> None:
    hall.offer("a", "b", "c")
    hall.uploads.clear()
    assert hall.chunk("a", 0) is None
    hall.now = 10.0
    hall.uploads.tick()
    assert len(hall.asked) == 2
    hall.offer("d", "e")
    assert [client for client, _ in hall.asked[2:]] == ["d", "e"]
