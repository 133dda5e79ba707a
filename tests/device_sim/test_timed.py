"""Simulations in which virtual time passes: they repeat themselves, go on, and heed deadlines and absences."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from broker.observer import Observer
from broker.summary import RunSummary
from device_sim.simulation.clients import Clients
from device_sim.simulation.schedule import DrawnSchedule
from device_sim.simulation.settings import Population, TrainerSettings, World
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.data.registry import load_dataset
from edge_fl.runs.config import RunConfig
from tests.device_sim.test_resume import Stop, StopsAfter

WORLD = World("8/2", steps=(0.05, 0.02), slowdowns=(1.0, 2.0, 4.0), spread=0.3, online=0.7, stay=4.0, failures=0.1)
STEADY = World("8/2", steps=(0.05,), slowdowns=(1.0, 3.0))


def simulation(
    bundle: Bundle, root: Path, world: World | None = WORLD, *, observer: Observer | None = None, **options: Any
) -> Simulation:
    known: dict[str, Any] = {
        "run": "test",
        "method": "fedbiad+dgc",
        "parameters": {},
        "rounds": 6,
        "clients_per_round": 5,
        "local_steps": 6,
        "batch": 20,
        "lr": 0.1,
        "seed": 2,
        "gone_after": 2.0,
        "deadline": 20.0,
    }
    return Simulation(
        bundle=bundle,
        config=RunConfig(**known | options),
        population=Population(12, tiers=2, test_share=0.2),
        trainer=TrainerSettings("stacked"),
        root=root,
        observer=observer or Observer(),
        world=world,
    )


def record(summary: RunSummary) -> tuple[bytes, bytes]:
    """Every bit of what a run leaves."""
    return (summary.weights.parent / "metrics.jsonl").read_bytes(), summary.weights.read_bytes()


KINDS = [
    {},
    pytest.param({"buffer": 2, "method": "fedavg"}, marks=pytest.mark.matrix),
    {"buffer": 3, "method": "fedbiad+dgc", "rounds": 12},
    pytest.param(
        {"tiers": "auto", "method": "fjord", "evaluate_on": 3, "selection": "capability"}, marks=pytest.mark.matrix
    ),
    pytest.param({"selection": "availability", "quorum": 1.0}, marks=pytest.mark.matrix),
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_timed_simulation_repeats_itself_and_goes_on_to_the_same_bits(
    torch_bundle: Bundle, tmp_path: Path, options: dict[str, Any]
) -> None:
    whole = simulation(torch_bundle, tmp_path / "whole", **options).run()
    again = simulation(torch_bundle, tmp_path / "again", **options).run()
    assert record(again) == record(whole)
    broken = simulation(torch_bundle, tmp_path / "broken", observer=StopsAfter(3), **options)
    with pytest.raises(Stop):
        broken.run()
    resumed = Simulation.resume(tmp_path / "broken", observer=Observer()).run()
    assert record(resumed) == record(whole)
    if options.get("buffer"):
        assert any(metrics.stale for metrics in whole.rounds)
    if options.get("evaluate_on"):
        assert {t for metrics in whole.rounds for t in metrics.on_devices} <= {0, 1, 2, 3, 4}
        assert any(metrics.on_devices for metrics in whole.rounds)


def test_who_misses_the_deadline_is_late_and_its_weights_do_not_count(
    torch_bundle: Bundle, tmp_path: Path
) -> None:
    slow = {f"client-{i}" for i in range(1, 12, 2)}  # 0.9 s of steps, where the others have 0.3 s
    options: dict[str, Any] = {"deadline": 0.6, "quorum": 0.1, "method": "fedavg", "clients_per_round": 12}
    run = simulation(torch_bundle, tmp_path / "run", STEADY, **options).run()
    for metrics in run.rounds:
        assert not metrics.uplink.keys() & slow
    for metrics in run.rounds[:2]:
        assert metrics.excused == dict.fromkeys(slow, "late")
        assert metrics.seconds == pytest.approx(0.6)
    assert run.rounds[2].seconds < 0.5  # the slow rest
    assert not run.rounds[2].excused
    ample = simulation(torch_bundle, tmp_path / "ample", STEADY, **options | {"deadline": 60.0}).run()
    timeless = simulation(torch_bundle, tmp_path / "timeless", None, **options).run()
    assert ample.weights.read_bytes() == timeless.weights.read_bytes() != run.weights.read_bytes()
    assert 0.9 < ample.rounds[0].seconds < 1.0
    assert all(0.3 < seconds < 1.0 for seconds in ample.rounds[0].took.values())
    assert ample.rounds[0].uplink == timeless.rounds[0].uplink


def test_a_buffered_simulation_does_not_wait_for_the_slow(torch_bundle: Bundle, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "fedavg", "rounds": 8}
    waits = simulation(torch_bundle, tmp_path / "waits", STEADY, **options).run()
    goes_on = simulation(torch_bundle, tmp_path / "goes-on", STEADY, buffer=2, **options).run()
    assert sum(m.seconds for m in goes_on.rounds) < 0.6 * sum(m.seconds for m in waits.rounds)
    assert max(late for metrics in goes_on.rounds for late in metrics.stale.values()) >= 2


def test_a_run_that_nobody_can_help_ends(torch_bundle: Bundle, tmp_path: Path) -> None:
    options: dict[str, Any] = {"deadline": 0.1, "method": "fedavg"}
    with pytest.raises(RunError, match="in 3 attempts"):
        simulation(torch_bundle, tmp_path, STEADY, **options).run()


def test_stays_and_absences_come_to_the_share_that_was_asked_for() -> None:
    clients = Clients(load_dataset("digits").train, Population(100), "onnx")
    schedule = DrawnSchedule(WORLD, clients, local_steps=1, seed=0)
    until, there = 4000.0, 0.0
    for client in clients:
        times = [time for time in islice(schedule.presence(client), 4000) if time < until] + [until]
        assert times == sorted(times)
        there += sum(b - a for a, b in zip(times[::2], times[1::2], strict=False))
    assert there / (100 * until) == pytest.approx(0.7, abs=0.01)
    failed = sum(schedule.fails(client, number) for client in clients for number in range(100))
    assert failed / 10_000 == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("options", [{"buffer": 1}, {"tiers": "auto"}, {"selection": "capability"}], ids=str)
def test_what_goes_by_time_needs_a_world(torch_bundle: Bundle, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--link"):
        simulation(torch_bundle, tmp_path / "run", None, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"online": 0.0}, "online for a share"),
        ({"failures": 1.0}, "failures of a simulated world"),
        ({"spread": -0.1}, "spread of a simulated world"),
        ({"stay": float("inf")}, "stay of a simulated world"),
        ({"steps": (0.0,)}, "steps of a simulated world"),
        ({"slowdowns": ()}, "a slowdown for each tier"),
        ({"link": "6g"}, "no link '6g'"),
    ],
)
def test_a_world_that_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        World(**{"link": "wifi"} | options)
