"""FedBIAD's bound: its equations by hand, and the table's numbers against them."""

from collections.abc import Callable
from math import log, sqrt

import pytest

from benchmarks.bound import Network, bench_bound, bound, epsilon, variance
from benchmarks.grid import Choice
from edge_fl.core.errors import ConfigError

SMALL = Network(nonzero=30, layers=2, hidden=5, inputs=3)


def test_the_equations_by_hand() -> None:
    # B D = 10, so 2 B D = 20; m = 600 is 20 data a weight, m = 6 fewer than one.
    many = 30 * 2 / 600 * log(20) + 3 * 30 / 600 * log(10) + 30 * 4 / 1200 + 2 * 30 / 600 * log(4 * 3 * 20)
    few = 30 * 2 / 6 * log(20) + 3 * 30 / 6 * log(10) + 30 * 4 / 12 + 2 * 30 / 6 * log(4 * 3)
    assert epsilon(SMALL, 600) == pytest.approx(many)
    assert epsilon(SMALL, 6) == pytest.approx(few)
    wider = 2 * log(30) + 3 * log(10) + 9 / 2 + 2 * log(4 * 3 * 20)
    assert epsilon(SMALL, 600, largest=3) == pytest.approx(30 / 600 * wider)
    braces = (3 + 1 + 1 / 9) ** 2 + 1 / 99 + 2 / 81
    assert variance(SMALL, 600) == pytest.approx(30 / (16 * 600 * 9) / log(15) / 20**4 / braces)


def test_alpha_is_the_best_there_is() -> None:
    for likelihood in (0.1, 1.0, 7.0):
        others = [
            2 * likelihood / (a * (1 - a)) * (1 + a / likelihood) * 3 for a in (i / 1000 for i in range(1, 1000))
        ]
        assert bound(3, likelihood) <= min(others) <= 1.001 * bound(3, likelihood)
    assert bound(1) == pytest.approx(2 * sqrt(2) / ((sqrt(2) - 1) * (2 - sqrt(2))))


def test_the_table_falls_with_rounds_and_says_when_it_means_something(tiny: Callable[..., Choice]) -> None:
    dense, half = bench_bound(tiny(rounds=50), (0, 500)).rows
    # The perceptron of the digits is 64-32-32-10.
    assert (dense["S"], half["S"]) == ("3,392", "1,856")
    assert 1 < float(half["after 50"]) < float(dense["after 50"]) < float(dense["after 1 round"]) / 40
    network, data = Network(1856, 3, 32, 64), int(str(half["m of a round"]).replace(",", ""))
    until = int(str(half["rounds until 2"]).replace(",", ""))
    assert bound(epsilon(network, data * until)) <= 2 < bound(epsilon(network, data * (until - 1)))


def test_only_perceptrons_have_one() -> None:
    with pytest.raises(ConfigError, match="of perceptrons, which the model of 'shakespeare' is not"):
        bench_bound(Choice(("shakespeare",), (0,)))
