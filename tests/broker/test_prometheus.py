"""What Prometheus would scrape."""

import math
import re
import socket
from urllib.error import URLError
from urllib.request import urlopen

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from broker.observer import Observer, Observers
from broker.prometheus import PrometheusMetrics, metrics_server
from edge_fl.core.errors import ConfigError, PortError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics, TierScore
from edge_fl.runs.privacy import Privacy, Spent
from edge_fl.wire.messages import PROTOCOL, Register
from tests.broker.test_pacing import config

PROFILE = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1)
ROUND = RoundMetrics(
    round=3,
    seconds=1.5,
    scores={"accuracy": 0.75, "macro-f1": 0.5},
    loss=0.5,
    train_loss=0.25,
    uplink={"a": 100, "b": 20},
    downlink={"a": 1000, "c": 500},
    excused={"c": "lost"},
    rejections={"late": 1},
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scraped(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    found = {m[1]: float(m[2]) for line in lines if (m := re.fullmatch(r"edge_fl_(\S+) (\S+)", line))}
    return {name: value for name, value in found.items() if "_created" not in name}


def tell(observer: Observer, config: RunConfig) -> None:
    observer.started(config, 1000)
    for client in "abc":
        observer.registered(client, PROFILE)
    observer.registered("a", PROFILE)
    observer.round_started(3, ["a", "b", "c"])
    for client, status in (("a", "accepted"), ("b", "accepted"), ("c", "gone")):
        observer.device(client, status)
    observer.rejected("b", "late", "Why.", 2)
    observer.rejected("b", "stale", "Why.", 1)
    observer.round_closed(ROUND)


def test_a_private_run_tells_its_epsilon_and_no_training_loss() -> None:
    registry = CollectorRegistry()
    observer = PrometheusMetrics(registry)
    privacy = Privacy("central", noise=1.0, devices=10)
    observer.started(config(privacy=privacy), 100)
    assert math.isnan(registry.get_sample_value("edge_fl_epsilon") or 0)
    private = msgspec.structs.replace(ROUND, train_loss=None, privacy=Spent(2.5, 1.0))
    observer.round_closed(private)
    observer.round_closed(msgspec.structs.replace(private, round=4, privacy=Spent(None, 1.0)))
    assert registry.get_sample_value("edge_fl_epsilon") == 2.5
    assert math.isnan(registry.get_sample_value("edge_fl_train_loss") or 0)


def test_a_run_is_scraped_while_it_lasts() -> None:
    settings = RunConfig(
        run="r",
        method="fedavg",
        parameters={},
        rounds=9,
        clients_per_round=3,
        local_steps=1,
        batch=1,
        lr=0.1,
        seed=0,
    )
    port = free_port()
    with metrics_server(f"127.0.0.1:{port}") as observer:
        nothing = scraped(port)
        assert nothing["devices"] == 0
        assert math.isnan(nothing["loss"])
        tell(Observers(Observer(), observer), settings)
        found = scraped(port)
        with pytest.raises(PortError, match="cannot be served"), metrics_server(f"127.0.0.1:{port}"):
            pass
    assert found == {
        "rounds": 9,
        "round": 3,
        "round_seconds": 1.5,
        'score{score="accuracy"}': 0.75,
        'score{score="macro-f1"}': 0.5,
        "loss": 0.5,
        "train_loss": 0.25,
        "devices": 2,
        "asked": 3,
        'device_events_total{status="accepted"}': 2,
        'device_events_total{status="gone"}': 1,
        'rejections_total{code="late"}': 2,
        'rejections_total{code="stale"}': 1,
        "excused_total": 1,
        "clipped_total": 0,
        "left_out": 0,
        "uplink_bytes_total": 120,
        "downlink_bytes_total": 1500,
    }
    with pytest.raises(URLError):
        scraped(port)


def test_what_devices_find_has_a_gauge_a_tier() -> None:
    scores = {
        0: TierScore(2, 40, 0.5, {"accuracy": 0.75}, 1000),
        3: TierScore(1, 10, 1.5, {"accuracy": 0.25}, 500),
    }
    port = free_port()
    with metrics_server(f"127.0.0.1:{port}") as observer:
        assert not any("tier" in name for name in scraped(port))
        observer.round_closed(msgspec.structs.replace(ROUND, on_devices=scores))
        observer.round_closed(msgspec.structs.replace(ROUND, scores={}, loss=None))  # nothing was evaluated
        found = {name: value for name, value in scraped(port).items() if "tier" in name}
        observer.round_closed(msgspec.structs.replace(ROUND, on_devices={3: scores[3]}))
        assert {name for name in scraped(port) if "tier" in name} == {name for name in found if '"3"' in name}
        observer.round_closed(ROUND)  # nobody answered
        assert not any("tier" in name for name in scraped(port))
    assert found == {
        'device_score{score="accuracy",tier="0"}': 0.75,
        'device_score{score="accuracy",tier="3"}': 0.25,
        'device_loss{tier="0"}': 0.5,
        'device_loss{tier="3"}': 1.5,
        'device_samples{tier="0"}': 40,
        'device_samples{tier="3"}': 10,
    }


@pytest.mark.parametrize("address", ["9464", ":9464", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"), metrics_server(address):
        pass
