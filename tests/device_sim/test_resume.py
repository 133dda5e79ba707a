"""A simulation that is killed and continued, against one that was not."""

import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from broker.observer import Observer
from broker.tables import SCHEMA
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl import __version__
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BundleError, RunError, StateError
from edge_fl.methods.base import Method, open_method
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.runs.privacy import Privacy


class Stop(Exception):  # noqa: N818
    pass


class StopsAfter(Observer):
    """Breaks the run off in the middle of a round."""

    def __init__(self, rounds: int, clients: int = 2) -> None:
        self._rounds, self._clients, self._seen = rounds, clients, 0

    def round_closed(self, metrics: RoundMetrics) -> None:
        self._rounds -= 1

    def device(self, client: str, status: str) -> None:
        if self._rounds == 0:
            self._seen += 1
            if self._seen == self._clients:
                raise Stop


def simulation(
    bundle: Bundle,
    root: Path,
    method: str,
    observer: Observer | None = None,
    *,
    parameters: dict[str, object] | None = None,
    privacy: Privacy | None = None,
) -> Simulation:
    config = RunConfig(
        run="test",
        method=method,
        parameters=parameters or {},
        rounds=5,
        clients_per_round=5,
        local_steps=7,
        batch=20,
        lr=0.1,
        seed=1,
        lr_drops=(0.5,),
        privacy=privacy,
    )
    return Simulation(
        bundle=bundle,
        config=config,
        population=Population(8, tiers=2),
        trainer=TrainerSettings("stacked"),
        root=root,
        observer=observer or Observer(),
    )


def lines(root: Path) -> list[str]:
    """The metrics but for the time taken."""
    return [re.sub(r'"seconds":[^,]*', "", line) for line in (root / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("fedbiad+dgc", {"tau": 1, "tau_in": "steps"}),
        pytest.param("afd", {}, marks=pytest.mark.matrix),
        ("fedmp", {"ratio": "bandit"}),
        pytest.param("fedavg", {"server.momentum": 0.5}, marks=pytest.mark.matrix),
        pytest.param("fedavg+stc", {}, marks=pytest.mark.matrix),
        pytest.param("fedbiad+tcs", {"server.momentum": 0.9}, marks=pytest.mark.matrix),
        pytest.param("vardrop", {"threshold": -4.0}, marks=pytest.mark.matrix),
    ],
)
def test_what_a_client_and_the_server_remember_is_resumed(
    torch_bundle: Bundle, tmp_path: Path, method: str, parameters: dict[str, object]
) -> None:
    whole = simulation(torch_bundle, tmp_path / "whole", method, parameters=parameters).run()
    broken = simulation(torch_bundle, tmp_path / "broken", method, StopsAfter(3), parameters=parameters)
    with pytest.raises(Stop):
        broken.run()
    assert len(lines(tmp_path / "broken")) == 3

    resumed = Simulation.resume(tmp_path / "broken", observer=Observer()).run()

    assert resumed.weights.read_bytes() == whole.weights.read_bytes()
    assert resumed.dense == whole.dense
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")


@pytest.mark.parametrize("private", [False, True])
def test_a_run_goes_on_with_the_defaults_that_it_began_with(
    torch_bundle: Bundle, tmp_path: Path, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version may have others. What a private run does not follow is not kept: it would be refused."""
    privacy = Privacy(kind="central", clip=1.0, noise=0.5, delta=1e-5) if private else None
    given: dict[str, object] = {"scale": False}
    broken = simulation(torch_bundle, tmp_path, "feddrop", StopsAfter(1), parameters=given, privacy=privacy)
    with pytest.raises(Stop):
        broken.run()
    kept = msgspec.json.decode((tmp_path / "config.json").read_bytes(), type=RunConfig).parameters
    unused = {} if private else {"rule": "holders", "weighting": "samples"}
    assert kept == {"dropout": [500], "mode": "units", "scale": False} | unused

    def with_other_defaults(name: str, given: Mapping[str, object]) -> Method:
        return open_method(name, {"dropout": [900], "mode": "rows", **given})

    monkeypatch.setattr("edge_fl.recipes.recipe.open_method", with_other_defaults)
    resumed = Simulation.resume(tmp_path, observer=Observer())
    assert resumed.settings.config.parameters == kept
    resumed.run()
    assert len(lines(tmp_path)) == 5


def test_a_killed_process_is_resumed_to_the_same_bits(torch_bundle: Bundle, tmp_path: Path) -> None:
    settings = ["--clients=12", "--fraction=0.5", "--rounds=30", "--local-steps=6", "--tiers=2", "--seed=4"]
    settings.append("--method=fedbiad+stc")
    command = [sys.executable, "-m", "edge_fl", "simulate"]
    begin = [*command, str(torch_bundle.root), *settings, "--output"]
    with subprocess.Popen([*begin, str(tmp_path / "broken")], stderr=subprocess.DEVNULL) as process:
        metrics, until = tmp_path / "broken" / "metrics.jsonl", time.monotonic() + 120
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 2:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finished = len(lines(tmp_path / "broken"))
    assert 2 <= finished < 30

    subprocess.run([*command, "--resume", str(tmp_path / "broken")], check=True, capture_output=True)
    subprocess.run([*begin, str(tmp_path / "whole")], check=True, capture_output=True)

    assert all((tmp_path / name / "plot.png").stat().st_size > 10_000 for name in ("broken", "whole"))
    one, other = (tmp_path / name / "weights.safetensors" for name in ("broken", "whole"))
    assert one.read_bytes() == other.read_bytes()
    assert [line.partition('"loss"')[2] for line in lines(tmp_path / "broken")] == [
        line.partition('"loss"')[2] for line in lines(tmp_path / "whole")
    ]


def test_a_run_killed_before_its_folder_was_written_is_resumed_and_not_begun_anew(
    torch_bundle: Bundle, tmp_path: Path
) -> None:
    whole = simulation(torch_bundle, tmp_path / "whole", "fedavg").run()
    killed = simulation(torch_bundle, tmp_path / "killed", "fedavg", StopsAfter(0))
    with pytest.raises(Stop):
        killed.run()
    config = (tmp_path / "killed" / "config.json").read_bytes()
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / "killed" / name).unlink()

    with pytest.raises(StateError, match="already holds a run; continue it with --resume"):
        simulation(torch_bundle, tmp_path / "killed", "fedavg")
    resumed = Simulation.resume(tmp_path / "killed", observer=Observer()).run()
    assert resumed.weights.read_bytes() == whole.weights.read_bytes()
    assert (tmp_path / "killed" / "config.json").read_bytes() == config


def test_a_run_killed_before_its_state_was_kept_is_begun_anew(torch_bundle: Bundle, tmp_path: Path) -> None:
    """What SQLite makes of a transaction that was never committed."""
    sqlite3.connect(tmp_path / "state.sqlite").execute("PRAGMA journal_mode = WAL").close()
    with pytest.raises(StateError, match="stopped before it began; start it again"):
        Simulation.resume(tmp_path, observer=Observer())
    assert len(simulation(torch_bundle, tmp_path, "fedavg").run().rounds) == 5


def test_another_run_of_the_folder_is_left_alone(torch_bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        StateError, match="already holds a run: continue the run with --resume, give another folder"
    ):
        simulation(torch_bundle, tmp_path, "fedavg")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_round_whose_model_has_no_finite_loss_is_not_kept(torch_bundle: Bundle, tmp_path: Path) -> None:
    """Clients train as ever, and the server takes a step that no float32 survives."""
    with pytest.raises(RunError, match=r"loss on held-out data is \w+; lower the step size"):
        simulation(torch_bundle, tmp_path, "fedavg+signsgd", parameters={"signsgd.step": 1e38}).run()
    with pytest.raises(RunError, match="held-out"):
        Simulation.resume(tmp_path, observer=Observer()).run()
    assert lines(tmp_path) == []


def test_what_cannot_be_resumed_is_refused_in_a_sentence(torch_bundle: Bundle, tmp_path: Path) -> None:
    root, state = tmp_path / "run", tmp_path / "run" / "state.sqlite"
    broken = simulation(torch_bundle, root, "fedavg", StopsAfter(1))
    with pytest.raises(StateError, match="Another process is at work on the run"):
        Simulation.resume(root, observer=Observer())
    with pytest.raises(Stop):
        broken.run()

    manifest = msgspec.structs.replace(torch_bundle.manifest, notes=("another",))
    files = {name: torch_bundle.read(name) for name in manifest.files}
    other = Bundle.save(tmp_path / "other", manifest, files)
    with pytest.raises(BundleError, match="trains another bundle"):
        Simulation.resume(root, observer=Observer(), bundle=other.root)
    database = sqlite3.connect(state)
    database.execute("UPDATE edge_fl_schema SET schema = 7")
    database.commit()
    database.close()
    with pytest.raises(StateError, match=f"schema version 7; this edge-fl reads version {SCHEMA}"):
        Simulation.resume(root, observer=Observer())
    state.write_bytes(b"no database" * 1000)
    with pytest.raises(StateError, match=r"is damaged \(file is not a database\)"):
        Simulation.resume(root, observer=Observer())
    state.unlink()
    with pytest.raises(StateError, match="There is no run in"):
        Simulation.resume(root, observer=Observer())


def test_a_runs_config_tells_what_it_was_begun_of(torch_bundle: Bundle, tmp_path: Path) -> None:
    simulation(torch_bundle, tmp_path / "run", "fedavg").close()
    about = msgspec.json.decode((tmp_path / "run" / "config.json").read_bytes(), type=RunConfig).about
    began = datetime.fromisoformat(about.pop("began"))
    assert 0 <= (datetime.now(UTC) - began).total_seconds() < 600
    assert about == {
        "version": __version__,
        "bundle": str(torch_bundle.root.resolve()),
        "bundle_sha256": torch_bundle.digest,
        "data": "digits",
        "clients": 8,
        "partition": "iid",
        "tiers": 2,
        "trainer": "stacked",
        "runtime": "torch_eager",
    }
