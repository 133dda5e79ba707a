"""Which rounds ruin a model, and whose updates are left out then."""

import math

import msgspec
import pytest

from broker.rollback import Rollback
from tests.broker.test_client_selection import ROUND


def after(*losses: float, factor: float | None = 3.0) -> Rollback:
    rollback = Rollback(factor)
    for loss in losses:
        rollback.see(msgspec.structs.replace(ROUND, loss=loss))
    return rollback


@pytest.mark.parametrize(
    ("losses", "loss", "ruined"),
    [
        ((2.0, 1.0, 0.5), 2.9, False),  # the median is 1
        ((2.0, 1.0, 0.5), 3.1, True),
        ((9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0), 3.1, True),  # of the last five
        ((2.0, 1.0), 99.0, False),  # too few to say
        ((), math.nan, True),
        ((), math.inf, True),
    ],
)
def test_a_loss_is_held_against_the_last_ones(losses: tuple[float, ...], loss: float, ruined: bool) -> None:
    assert after(*losses).ruined(loss) is ruined
    assert not after(*losses, factor=None).ruined(loss)


@pytest.mark.parametrize(
    ("bad", "tried"),
    [({"c"}, [1]), ({"c", "e"}, [1, 2]), ({"a", "b", "c"}, [1, 2, 4]), ({"a", "b", "c", "d", "e"}, [1, 2, 4])],
)
def test_the_worst_are_left_out_until_the_model_is_not_ruined(bad: set[str], tried: list[int]) -> None:
    rollback, clients, sizes = after(1.0, 1.0, 1.0), "abcdefghi", []
    alone = {client: (math.nan if client == min(bad) else 99.0) if client in bad else 5.0 for client in clients}

    def without(left_out: frozenset[str]) -> float:
        sizes.append(len(left_out))
        return 99.0 if bad - left_out else 1.0

    culprits = rollback.culprits(alone, without)
    assert sizes == tried
    assert (culprits >= bad) == (len(bad) < 5)
    assert len(culprits) < len(clients) / 2
