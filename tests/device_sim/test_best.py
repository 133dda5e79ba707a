"""The best round of a run: which it is, what is kept of it, and when a run ends because of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.best import Best
from broker.commands.status import status as show_status
from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runs.run import Run
from tests.device_sim.test_resume import Stop, StopsAfter

NAN = float("nan")


def finished(number: int, **changes: Any) -> RoundMetrics:
    known: dict[str, Any] = {"loss": None, "train_loss": 0.0, "excused": {}, "rejections": {}}
    return RoundMetrics(round=number, seconds=0.0, uplink={}, downlink={}, **known | changes)


@pytest.mark.parametrize(
    ("lower", "scores", "best", "since"),
    [
        (False, [0.1, 0.4, 0.3, 0.4], 2, 2),
        (True, [0.1, 0.4, 0.3], 1, 2),
        (False, [NAN, None, 0.2, NAN], 3, 1),
        (False, [None, NAN], 0, 1),
    ],
)
def test_the_best_is_the_first_of_the_best_numbers(
    lower: bool, scores: list[float | None], best: int, since: int
) -> None:
    found = Best("rmse", lower=lower)
    for number, value in enumerate(scores, 1):
        found.see(finished(number, scores={} if value is None else {"rmse": value}))
    assert (found.round, found.since) == (best, since)


def simulation(
    bundle: Bundle, root: Path, observer: Observer | None = None, method: str = "fedavg", **options: Any
) -> Simulation:
    config = RunConfig(
        run="test",
        method=method,
        parameters={},
        clients_per_round=4,
        local_steps=5,
        batch=20,
        seed=1,
        **{"rounds": 9, "lr": 2.0, **options},  # a step that large goes up and down
    )
    return Simulation(
        bundle=bundle,
        config=config,
        population=Population(8),
        trainer=TrainerSettings("stacked"),
        root=root,
        observer=observer or Observer(),
    )


@pytest.mark.matrix
def test_the_weights_are_those_of_the_best_round_after_a_kill_too(
    torch_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = simulation(torch_bundle, tmp_path / "last").run()
    values = [metrics.scores["accuracy"] for metrics in last.rounds]
    best = 1 + int(np.argmax(values))
    assert best < len(values)  # else this shows nothing

    kept = simulation(torch_bundle, tmp_path / "kept", keep_best="accuracy").run()
    shorter = simulation(torch_bundle, tmp_path / "shorter", rounds=best).run()
    assert kept.weights.read_bytes() == shorter.weights.read_bytes() != last.weights.read_bytes()
    assert (kept.best, kept.scores) == (best, last.rounds[best - 1].scores)
    assert kept.figures()["best_round"] == best
    run = Run.open(tmp_path / "kept")
    assert run.kept is not None
    assert run.kept.round == best
    assert run.scores == last.rounds[best - 1].scores
    show_status(run=tmp_path / "kept")
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Its model, of round {best} (accuracy" in shown
    assert [path.name for path in (tmp_path / "kept").glob("best-*")] == [f"best-{best:05d}.safetensors"]

    for rounds in (best - 1, best, best + 1):
        root = tmp_path / f"broken-{rounds}"
        with pytest.raises(Stop):
            simulation(torch_bundle, root, StopsAfter(rounds), keep_best="accuracy").run()
        resumed = Simulation.resume(root, observer=Observer()).run()
        assert resumed.weights.read_bytes() == kept.weights.read_bytes()


def test_patience_ends_a_run_that_grows_no_better(torch_bundle: Bundle, tmp_path: Path) -> None:
    whole = simulation(torch_bundle, tmp_path / "whole", keep_best="loss").run()
    losses = [metrics.loss or 0.0 for metrics in whole.rounds]
    patient = simulation(torch_bundle, tmp_path / "patient", keep_best="loss", patience=2).run()
    ended = len(patient.rounds)
    assert ended < len(losses)
    assert min(losses[:ended]) == losses[ended - 3]
    assert patient.best == ended - 2
    one, other = load_file(patient.weights), load_file(whole.weights)
    assert (patient.best == whole.best) == all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"keep_best": "f1"}, "no score 'f1' to keep the best of: it has loss, accuracy"),
        ({"patience": 3}, "--keep-best"),
        ({"keep_best": "loss", "patience": -1}, "patience of -1"),
    ],
)
def test_what_has_no_best_is_refused(
    torch_bundle: Bundle, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        simulation(torch_bundle, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
