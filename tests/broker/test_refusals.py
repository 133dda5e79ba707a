"""What is turned away is told in batches."""

from pathlib import Path

from broker.database import local_url
from broker.observer import Observer
from broker.refusals import Refusals
from broker.store import Rejected, Store


class Seen(Observer):
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, int]] = []

    def rejected(self, client: str, code: str, reason: str, times: int) -> None:
        self.told.append((client, code, reason, times))


def test_the_first_is_told_at_once_and_a_flood_every_ten_seconds(tmp_path: Path) -> None:
    seen, clock = Seen(), [0.0]
    store = Store(local_url(tmp_path), "run", b"{}")
    refusals = Refusals(store, seen, lambda: clock[0])
    refusals.add(1, "a", "message", "First.")
    refusals.tell_in_time()
    assert seen.told == [("a", "message", "First.", 1)]
    for number in range(1000):
        clock[0] += 0.015
        refusals.add(1, "a", "message", f"{number}.")
        refusals.tell_in_time()
    refusals.add(1, "", "topic", "Elsewhere.", 7)
    assert refusals.take() == {"message": 1001, "topic": 7}
    assert [times for _, code, _, times in seen.told if code == "message"] == [1, 667, 333]
    assert store.rejected() == [
        Rejected(1, "", "topic", 7, "Elsewhere."),
        Rejected(1, "a", "message", 1001, "999."),
    ]
    assert refusals.take() == {}
    store.close()
