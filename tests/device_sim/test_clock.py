"""Virtual time, against numbers worked out by hand."""

import pytest

from device_sim.simulation.links import LINKS, Link, find_link
from device_sim.simulation.settings import Population
from device_sim.simulation.time_model import Clock, Traffic, time_to, traffic_of
from edge_fl.core.errors import ConfigError
from edge_fl.runs.metrics import RoundMetrics


def test_a_round_lasts_as_long_as_its_slowest_client() -> None:
    clock = Clock([Link(down=80.0, up=8.0)], steps=(0.01, 0.002), local_steps=50, slowdowns=(1.0, 10.0))
    # 1 MB down at 80 Mbps: 0.1 s. Tier 0: 50 * 0.01 = 0.5 s, and 2 MB up at 8 Mbps: 2 s.
    assert clock.round(Traffic({0: 1_000_000}, {0: 2_000_000})) == pytest.approx(0.1 + 0.5 + 2.0)
    # Tier 1: 50 * 0.002 * 10 = 1 s, and 1.6 MB up: 1.6 s; with 3 MB down, 0.3 s, more than tier 0's 2.6 s.
    assert clock.round(Traffic({0: 1_000_000, 1: 3_000_000}, {0: 2_000_000, 1: 1_600_000})) == pytest.approx(
        0.3 + 1.0 + 1.6
    )
    # Tier 5 is as the last one that is told of.
    assert clock.training(5) == clock.training(1) == pytest.approx(1.0)


def test_the_default_link_is_the_papers_and_times_add_up() -> None:
    clock = Clock([LINKS["5g"]], steps=(0.0,), local_steps=1)
    traffic = Traffic({0: 110_600_000 // 8}, {0: 14_000_000 // 8})  # one second each way
    assert clock.elapsed([traffic, traffic]) == pytest.approx([2.0, 4.0])


def test_a_late_link_costs_every_message_its_latency_and_some_a_recovery() -> None:
    link = Link(8.0, 8.0, latency=0.1, jitter=0.04, loss=0.01, recovery=0.5)
    clock = Clock([LINKS["wifi"], link], steps=(0.0,), local_steps=1)
    lost = 1 - 0.99**1000  # of a thousand segments, one at least
    assert link.disturbed(1_460_000) == pytest.approx(lost)
    # Two contents of 1.46 s each, and four short messages.
    expected = 2 * (1.46 + 0.12 + 0.5 * lost) + 4 * (0.12 + 0.5 * 0.01)
    assert clock.transfers(1, 1_460_000, 1_460_000) == pytest.approx(expected)
    slow = Clock([link.slowed(3.0)], steps=(0.0,), local_steps=1)
    assert slow.transfers(0, 1_460_000, 1_460_000) == pytest.approx(3 * expected)


def test_the_time_to_an_accuracy_is_that_of_the_first_round_that_reaches_it() -> None:
    assert time_to(0.8, [0.5, 0.8, 0.7, 0.9], [1.0, 2.5, 3.0, 4.0]) == 2.5
    assert time_to(0.91, [0.5, 0.8, 0.7, 0.9], [1.0, 2.5, 3.0, 4.0]) is None


def test_a_rounds_traffic_is_the_most_that_a_client_of_each_tier_gets_and_gives() -> None:
    uplink = {"client-5": 10, "client-12": 30, "client-2": 20, "client-0": 7}
    metrics = RoundMetrics(
        round=1,
        seconds=0.0,
        scores={"accuracy": 0.0},
        loss=0.0,
        train_loss=0.0,
        uplink=uplink,
        downlink={"client-5": 70, "client-12": 400, "client-2": 90, "client-0": 80},
        excused={},
        rejections={},
    )
    assert traffic_of(metrics, Population(13, tiers=3).tier) == Traffic({0: 400, 2: 90}, {0: 30, 2: 20})


def test_a_link_has_a_name_or_speeds() -> None:
    assert find_link("3g") == LINKS["3g"]
    assert find_link("50/7.5") == Link(50.0, 7.5)
    for wrong in ("6g", "50", "50/x", "-1/2"):
        with pytest.raises(ConfigError, match=f"no link '{wrong}'"):
            find_link(wrong)
    with pytest.raises(ConfigError, match="above 0"):
        find_link("0/2")
    for wrong_field in ({"latency": -1.0}, {"loss": 1.0}, {"jitter": float("inf")}):
        with pytest.raises(ConfigError, match="A link"):
            Link(1.0, 1.0, **wrong_field)
    with pytest.raises(ConfigError, match="above 0"):
        Clock([LINKS["3g"]], steps=(1.0,), local_steps=1, slowdowns=(1.0, 0.0))
