"""Who is asked to train."""

import msgspec
import pytest

from broker.client_selection import ClientSelection
from edge_fl.runs.metrics import RoundMetrics

CLIENTS = [f"c{i:02}" for i in range(20)]
ROUND = RoundMetrics(
    round=1,
    seconds=1.0,
    scores={"accuracy": 0.5},
    loss=1.0,
    train_loss=1.0,
    uplink={"c00": 1, "c01": 1},
    downlink={},
    excused={"c02": "lost"},
    rejections={},
    tiers={"c00": 0, "c01": 0, "c02": 0},
    took={"c00": 2.0, "c01": 8.0, "c02": 30.0},
)


@pytest.mark.parametrize("policy", ["random", "least-recent", "availability", "capability"])
def test_it_depends_on_who_is_there_and_on_nothing_else(policy) -> None:
    one, other = ClientSelection(policy, seed=1), ClientSelection(policy, seed=1)
    picked = one.pick(CLIENTS, 5, round=2)
    assert picked == other.pick(CLIENTS[::-1], 5, round=2) == sorted(set(picked))
    assert len(picked) == 5
    assert picked != one.pick(CLIENTS, 5, round=3)
    assert picked != one.pick(CLIENTS, 5, round=2, attempt=1)
    assert picked != ClientSelection(policy, seed=2).pick(CLIENTS, 5, round=2)
    assert one.pick(CLIENTS[:3], 5, round=2) == CLIENTS[:3]


MISSED = msgspec.structs.replace(ROUND, uplink={}, tiers=dict.fromkeys(CLIENTS[:3], 0))


def rested(selection: ClientSelection, client: str, number: int) -> bool:
    return client not in selection.pick(CLIENTS, len(CLIENTS), round=number)


def test_who_twice_in_a_row_sends_nothing_rests_for_ever_longer() -> None:
    selection, number, rests = ClientSelection("random", seed=0), 0, []
    for _ in range(8):
        number += 1
        assert not rested(selection, "c00", number)
        selection.learn(msgspec.structs.replace(MISSED, round=number))
        first = number
        while rested(selection, "c00", number + 1):
            number += 1
        rests.append(number - first)
    assert rests == [0, 1, 2, 4, 8, 16, 16, 16]
    selection.learn(msgspec.structs.replace(MISSED, round=number + 1, uplink={"c00": 1}))
    selection.learn(msgspec.structs.replace(MISSED, round=number + 2))
    assert not rested(selection, "c00", number + 3)  # once is chance


def test_an_update_that_was_left_out_for_its_size_counts_as_none_and_a_clipped_one_as_one() -> None:
    selection = ClientSelection("random", seed=0)
    for number in (1, 2):
        left_out = {"c00": 0.0, "c01": 0.6}
        selection.learn(
            msgspec.structs.replace(MISSED, round=number, uplink=dict.fromkeys(left_out, 1), clipped=left_out)
        )
    assert selection.resting(3) == {"c00": 3, "c02": 3}


def test_who_rests_is_asked_where_there_are_too_few_others() -> None:
    selection = ClientSelection("random", seed=0)
    for number in (1, 2):
        selection.learn(msgspec.structs.replace(MISSED, round=number))
    assert selection.pick(CLIENTS[:5], 4, round=3) == ["c03", "c04"]
    picked = selection.pick(CLIENTS[:5], 4, round=3, least=3)
    assert len(picked) == 3
    assert {"c03", "c04"} < set(picked)
    assert selection.pick(CLIENTS[:2], 4, round=3, least=9) == CLIENTS[:2]


def test_at_random_everyone_is_asked_as_often() -> None:
    selection, counts = ClientSelection("random", seed=0), dict.fromkeys(CLIENTS, 0)
    selection.learn(ROUND)
    for number in range(400):
        for client in selection.pick(CLIENTS, 5, round=number):
            counts[client] += 1
    assert 60 < min(counts.values()) <= max(counts.values()) < 140  # of 100; 8.7 is a standard deviation


@pytest.mark.parametrize(
    ("policy", "first", "last"),
    [
        ("least-recent", {"c03"}, ["c01"]),
        ("availability", {"c00", "c01", "c03"}, ["c02"]),
        ("capability", {"c03"}, ["c00", "c01", "c02"]),
    ],
)
def test_a_policy_goes_by_what_rounds_have_shown(policy, first: set[str], last: list[str]) -> None:
    selection = ClientSelection(policy, seed=0)
    selection.learn(ROUND)
    later = msgspec.structs.replace(
        ROUND, round=2, tiers={"c01": 0}, uplink={"c01": 1}, excused={}, took={"c01": 8.0}
    )
    selection.learn(later)
    four = CLIENTS[:4]
    assert set(selection.pick(four, len(first), round=3)) == first
    for count, client in enumerate(reversed(last), start=1):
        assert client not in selection.pick(four, 4 - count, round=3)


def test_how_long_a_client_takes_is_mostly_what_it_took_last() -> None:
    selection = ClientSelection("capability", seed=0)
    selection.learn(ROUND)
    assert selection.pick(["c00", "c01"], 1, round=2) == ["c00"]
    selection.learn(msgspec.structs.replace(ROUND, round=2, took={"c00": 20.0}))
    assert selection.pick(["c00", "c01"], 1, round=3) == ["c01"]


@pytest.mark.parametrize("policy", ["random", "least-recent", "availability", "capability"])
def test_those_who_never_deliver_do_not_take_the_places_of_others(policy) -> None:
    selection, broken = ClientSelection(policy, seed=0), set(CLIENTS[:6])
    asked = 0
    for number in range(1, 61):
        picked = selection.pick(CLIENTS, 5, round=number)
        asked += len(broken & set(picked))
        metrics = msgspec.structs.replace(
            ROUND,
            round=number,
            tiers=dict.fromkeys(picked, 0),
            uplink=dict.fromkeys(set(picked) - broken, 1),
            took={client: 1.0 + (client in broken) for client in picked},
        )
        selection.learn(metrics)
    assert asked <= 60 * 5 * 6 / 20 * 1.25  # their share of all clients, and what chance adds
