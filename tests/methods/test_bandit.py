"""E-UCB against its regions and bounds written out plainly."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_fl.methods._bandit import Bandit


class Reference:
    """Regions as lists of arms, and every play with the number of the play it was."""

    def __init__(self, arms: int, discount: float) -> None:
        self.regions = [list(range(arms))]
        self.plays: list[tuple[int, float]] = []
        self.discount = discount

    def _discounted(self, region: list[int]) -> tuple[float, float]:
        last = len(self.plays) - 1
        among = [
            (self.discount ** (last - s), reward) for s, (arm, reward) in enumerate(self.plays) if arm in region
        ]
        return sum(weight for weight, _ in among), sum(weight * reward for weight, reward in among)

    def worth(self, region: list[int]) -> float:
        count, earned = self._discounted(region)
        everything = sum(self._discounted(each)[0] for each in self.regions)
        return earned / count + math.sqrt(2 * math.log(max(everything, 1)) / count) if count else math.inf

    def best(self) -> list[int]:
        return max(self.regions, key=self.worth)

    def learn(self, arm: int, reward: float) -> None:
        self.plays.append((arm, reward))
        region = next(each for each in self.regions if arm in each)
        place = region.index(arm) + 1 if arm != region[-1] else region.index(arm)
        if 0 < place < len(region):
            where = self.regions.index(region)
            self.regions[where : where + 1] = [region[:place], region[place:]]


@given(
    st.integers(1, 12),
    st.sampled_from([1.0, 0.95, 0.5]),
    st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 64)), max_size=25),
)
def test_it_plays_the_region_of_the_highest_bound(
    arms: int, discount: float, script: list[tuple[float, int]]
) -> None:
    bandit, reference = Bandit.of(arms), Reference(arms, discount)
    for uniform, reward in script:
        arm, region = bandit.choose(uniform), reference.best()
        worth = reference.worth(next(each for each in reference.regions if arm in each))
        assert worth == pytest.approx(reference.worth(region), rel=1e-9)  # which of two alike is rounding's choice
        bandit = bandit.learned(arm, reward / 64, discount)
        reference.learn(arm, reward / 64)


def test_every_arm_of_the_region_can_be_drawn() -> None:
    assert {Bandit.of(5).choose(i / 100) for i in range(100)} == set(range(5))


def test_it_finds_what_earns_most_and_follows_it_when_it_moves() -> None:
    bandit, played = Bandit.of(11), list[int]()
    for number in range(600):
        best = 3 if number < 300 else 9
        arm = bandit.choose((number * 0.618) % 1)
        bandit = bandit.learned(arm, 1.0 if arm == best else 0.1, discount=0.99)
        played.append(arm)
    assert played[200:300].count(3) > 30  # of 11 arms, of which chance plays 9 times each
    assert played[500:].count(9) > 30


def test_what_is_known_is_not_written_to() -> None:
    before = Bandit.of(4)
    before.learned(2, 1.0, 0.9)
    assert not before.plays.any()
    assert not before.cuts.any()
