"""What privacy costs: as dp-accounting counts it, and beside figures that others published."""

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from broker.accountant import Accountant, epsilon_of, settled
from edge_fl.core.errors import ConfigError
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runs.privacy import Privacy
from tests.broker.test_pacing import config


def sampled(chance: float, noise: float, times: int) -> Any:
    event = dp_accounting.PoissonSampledDpEvent(chance, dp_accounting.GaussianDpEvent(noise))
    return dp_accounting.SelfComposedDpEvent(event, times)


def metrics(number: int, asked: list[str]) -> RoundMetrics:
    return RoundMetrics(number, 1.0, None, None, {}, {}, {}, {}, tiers=dict.fromkeys(asked, 0))


@pytest.mark.parametrize(
    ("noise", "chance", "times", "delta", "published"),
    [
        (4.0, 0.01, 10_000, 1e-5, 1.26),  # Abadi et al. 2016, section 3.2
        (1.12, 256 / 60_000, 14_063, 1e-5, 2.92),  # TensorFlow Privacy, README of compute_dp_sgd_privacy
        (1.0, 5000 / 763_430, 5000, 1e-9, 4.634),  # McMahan et al. 2018, Table 1
    ],
)
def test_epsilon_is_below_what_was_published_and_above_the_tight_bound(
    noise: float, chance: float, times: int, delta: float, published: float
) -> None:
    """They turned Rényi's divergence into epsilon by an older, looser bound, which gives their figures here, too."""
    found = epsilon_of(Privacy("central", noise=noise, delta=delta), times, chance)
    assert found is not None
    tight = PLDAccountant().compose(sampled(chance, noise, times)).get_epsilon(delta)
    assert tight < found < 1.1 * tight
    assert found < published
    event = sampled(chance, noise, 1)
    alone = RdpAccountant().compose(event)
    orders, divergences = np.array(alone._orders), times * np.array(alone._rdp)
    older = float(np.min(divergences + math.log(1 / delta) / (orders - 1)))
    assert older == pytest.approx(published, rel=0.01)


def test_epsilon_is_dp_accountings() -> None:
    privacy = Privacy("central", noise=1.1, delta=1e-5)
    expected = RdpAccountant().compose(sampled(0.05, 1.1, 200)).get_epsilon(1e-5)
    assert epsilon_of(privacy, 200, 0.05) == pytest.approx(expected, rel=1e-3)
    whole = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.1), 20)
    expected = RdpAccountant().compose(whole).get_epsilon(1e-5)
    assert epsilon_of(privacy, 20, 1.0) == pytest.approx(expected)


def test_a_draw_of_a_fixed_number_would_cost_ten_times_as_much() -> None:
    """docs/design.md: neighbours replace a device there, whose updates are up to two clips apart."""
    replaced = dp_accounting.NeighboringRelation.REPLACE_ONE
    fixed = dp_accounting.SampledWithoutReplacementDpEvent(1000, 100, dp_accounting.GaussianDpEvent(0.5))
    found = RdpAccountant(neighboring_relation=replaced).compose(fixed, 60).get_epsilon(1e-4)
    ours = epsilon_of(Privacy("central", noise=1.0, delta=1e-4), 60, 0.1)
    assert found == pytest.approx(52, abs=0.5)
    assert ours == pytest.approx(5.4, abs=0.05)


def test_local_updates_are_two_clips_apart() -> None:
    local, central = Privacy("local", noise=2.0), Privacy("central", noise=1.0)
    assert epsilon_of(local, 5, 1.0) == epsilon_of(central, 5, 1.0)


def test_hardly_any_noise_costs_no_more_than_without_chance() -> None:
    privacy = Privacy("central", noise=0.01)
    small, whole = epsilon_of(privacy, 3, 0.1), epsilon_of(privacy, 3, 1.0)
    assert small is not None
    assert whole is not None
    assert small <= whole < math.inf
    assert epsilon_of(Privacy("central", noise=0.0), 3, 0.1) is None


@pytest.mark.parametrize(
    "epsilon", [3.0, *(pytest.param(epsilon, marks=pytest.mark.matrix) for epsilon in (0.5, 20.0))]
)
def test_the_noise_found_for_an_epsilon_gives_it(epsilon: float) -> None:
    run = config(rounds=30, clients_per_round=10, privacy=Privacy("central", epsilon=epsilon))
    made = settled(run, devices=200).privacy
    assert made is not None
    assert (made.devices, made.epsilon) == (200, None)
    found = epsilon_of(made, 30, 0.05)
    assert found is not None
    assert 0.98 * epsilon < found <= epsilon
    assert settled(settled(run, devices=200), devices=7) == settled(run, devices=200)
    assert settled(config()) == config()


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    run = config(rounds=30, clients_per_round=10, privacy=Privacy("central", epsilon=1e9))
    with pytest.raises(ConfigError, match=r"No noise from 0\.01 to 100000 clips gives an epsilon"):
        settled(run, devices=200)


def test_a_round_counts_by_chance_or_without() -> None:
    privacy = Privacy("central", noise=1.0, devices=100)
    random, other = (
        Accountant(config(clients_per_round=10, selection=policy, privacy=privacy))
        for policy in ("random", "least-recent")
    )
    for accountant in (random, other):
        accountant.see(metrics(1, ["a"]))
    assert random.with_round(["a"]) == epsilon_of(privacy, 2, 0.1)
    assert other.with_round(["a"]) == epsilon_of(privacy, 2, 1.0)


def test_local_epsilon_is_that_of_whoever_was_asked_most() -> None:
    privacy = Privacy("local", noise=4.0)
    accountant = Accountant(config(privacy=privacy))
    accountant.see(metrics(1, ["a", "b"]))
    accountant.see(metrics(2, ["a"]))
    assert accountant.with_round(["b"]) == epsilon_of(privacy, 2, 1.0)
    assert accountant.with_round(["a"]) == epsilon_of(privacy, 3, 1.0)
    assert Accountant(config(privacy=privacy)).with_round([]) == 0.0


def test_a_missing_library_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    run = config(privacy=Privacy("central", noise=1.0))
    for needs_it in (Accountant, settled):
        with pytest.raises(ConfigError, match=r"pip install 'edge-fl\[privacy\]'"):
            needs_it(run)
