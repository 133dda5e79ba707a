"""How many messages a client may have handled."""

import pytest

from broker import allowance as module
from broker.allowance import Allowance


def spent(allowance: Allowance, client: str, now: float) -> int:
    return sum(allowance.spend(client, now) for _ in range(100))


@pytest.mark.parametrize("registered", [{"flood"}, {}])
def test_who_floods_has_a_burst_and_then_a_rate_and_others_have_theirs(registered: set[str]) -> None:
    allowance = Allowance(registered, burst=10, rate=2)
    assert spent(allowance, "flood", 0.0) == 10
    assert spent(allowance, "flood", 3.0) == 6
    assert allowance.spend("honest", 3.0)
    assert spent(allowance, "flood", 1000.0) == 10  # no more than a bucket holds


def test_strangers_share_one_however_many_names_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_STRANGERS", 20)
    allowance = Allowance({"honest"}, burst=10, rate=2, strangers=3)
    assert sum(allowance.spend(f"forged-{n}", 0.0) for n in range(100)) == 30
    assert len(allowance._unknown) <= 20
    assert spent(allowance, "honest", 0.0) == 10
