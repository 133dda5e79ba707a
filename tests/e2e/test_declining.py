"""Devices that would rather not train now."""

import logging
import threading

import pytest

from broker.observer import Observer
from broker.session import serve
from edge_fl.agent.agent import Agent, AgentSettings
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import DeclinedError
from edge_fl.data.sources.base import open_source
from edge_fl.transport.address import BrokerAddress

TIMES = 2  # that each device declines, fewer than the attempts at a round


class Moody:
    """Declines at first."""

    def __init__(self) -> None:
        self.left = TIMES

    def consent(self) -> None:
        if self.left:
            self.left -= 1
            raise DeclinedError("The battery is at 3 %, below 20 %, and the device is not being charged.")


def test_a_round_that_every_device_declines_is_gone_on_with_when_they_have_rested(
    system, digits_bundle: Bundle, embedded: BrokerAddress, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setattr("broker.gateway._REST_SECONDS", 0.3)
    agents = [
        Agent(
            AgentSettings(broker=embedded, client=f"client-{i}", state=system.folder / f"client-{i}", once=True),
            open_source(f"digits:{i}/10"),
            consent=Moody().consent,
        )
        for i in range(2)
    ]
    threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    with caplog.at_level(logging.WARNING):
        done = serve(
            bundle=digits_bundle,
            config=system.config(rounds=2, clients=2, quorum=1.0),
            root=system.folder / "run",
            address=embedded,
            observer=Observer(),
        )
    for thread in threads:
        thread.join(60)
    assert [sorted(metrics.uplink) for metrics in done.rounds] == [["client-0", "client-1"]] * 2
    declined = [r.message for r in caplog.records if "declined to train: The battery is at 3 %" in r.message]
    assert len(declined) == TIMES * len(agents)
