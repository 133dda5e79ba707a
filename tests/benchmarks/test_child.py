"""Processes of a benchmark: whoever waits for one hears of the end of another."""

from multiprocessing.connection import Connection

import pytest

from benchmarks.load.child import Child
from edge_fl.core.errors import BrokerError, RunError

SECONDS = 60.0


def silent(pipe: Connection) -> None:
    pipe.recv()


def refused(_pipe: Connection) -> None:
    raise BrokerError("No broker answers.")


def ended(_pipe: Connection) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("main", "why"),
    [(refused, "devices failed: No broker answers"), (ended, "devices failed: it ended with exit code 3")],
)
def test_a_process_that_ends_is_told_to_who_waits_for_another(main: object, why: str) -> None:
    with Child("coordinator", silent) as lead, Child("devices", main) as crowd, pytest.raises(RunError, match=why):
        lead.receive(SECONDS, [crowd])


def test_one_that_says_nothing_is_given_up() -> None:
    with (
        Child("coordinator", silent) as lead,
        Child("devices", silent) as crowd,
        pytest.raises(RunError, match=r"coordinator failed: nothing for 0 s"),
    ):
        lead.receive(0.2, [crowd])
