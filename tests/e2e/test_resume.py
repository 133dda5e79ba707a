"""A coordinator that is killed again and again and goes on: the weights are those of a quiet run."""

import multiprocessing
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from broker.observer import Observer
from broker.session import resume
from broker.status import status_of
from device_sim.emulation.chaos import same_weights
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import StateError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.transport.address import BrokerAddress
from tests.e2e import killed_coordinator
from tests.postgres import postgres

KILLS, ROUNDS, LONGEST = 10, 12, 45  # a start has some 10 points to die at, a round some 40
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.e2e.killed_coordinator"])


def coordinator_ends_with(*arguments: object) -> int | None:
    """Run a coordinator in a process of its own; its exit code, the negated signal where one killed it."""
    process = PROCESSES.Process(target=killed_coordinator.coordinate, args=arguments)
    process.start()
    process.join(240)
    assert process.exitcode is not None, "the coordinator hangs"
    return process.exitcode


def metrics_of(root: Path) -> list[RoundMetrics]:
    lines = (root / "metrics.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RoundMetrics) for line in lines]


@pytest.mark.parametrize("recipe", ["fedbiad+dgc", pytest.param("fedavg+stc", marks=pytest.mark.matrix)])
def test_a_coordinator_killed_at_any_point_of_a_round_goes_on_to_the_same_weights(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path, recipe: str
) -> None:
    config: RunConfig = system.config(recipe, rounds=ROUNDS, quorum=1.0)
    quiet = system.run(config, system.agents(), embedded)
    rng = random.Random(recipe)
    root, killed = tmp_path / "killed", 0
    with system.fleet(system.agents(), embedded) as fleet:
        while killed < KILLS:
            lives = rng.randint(1, LONGEST)
            code = coordinator_ends_with(digits_bundle.root, config, root, embedded, lives)
            assert code == -signal.SIGKILL, "the run was over before it was killed often enough"
            killed += 1
        assert coordinator_ends_with(digits_bundle.root, config, root, embedded, None) == 0
        fleet.wait(timeout=120)
    assert same_weights(quiet.weights, root / "weights.safetensors")
    ended = metrics_of(root)
    assert [metrics.round for metrics in ended] == list(range(1, ROUNDS + 1))
    assert [metrics.uplink for metrics in ended] == [metrics.uplink for metrics in quiet.rounds]


def until_round(root: Path, number: int, process: subprocess.Popen[bytes]) -> None:
    lines, limit = root / "metrics.jsonl", time.monotonic() + 240
    while not lines.exists() or lines.read_bytes().count(b"\n") < number:
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.01)


def killed_and_resumed(
    system, bundle: Bundle, address: BrokerAddress, root: Path, database: str | None = None
) -> Path:
    """By command, over a broker that lives on, and looked at before it ends; the final weights."""
    options = [] if database is None else [f"--database={database}"]
    serve = [sys.executable, "-m", "edge_fl", "serve", "--broker", str(address), *options]
    run = ["--rounds=12", "--clients-per-round=3", "--quorum=1", "--local-steps=5", "--seed=7", f"--output={root}"]
    with system.fleet(system.agents(), address) as fleet:
        with subprocess.Popen([*serve, str(bundle.root), *run], stderr=subprocess.DEVNULL) as process:
            until_round(root, 2, process)
            process.send_signal(signal.SIGSTOP)  # or it may have ended before it is looked at
            seen = status_of(root, database)
            process.kill()
        limit = time.monotonic() + 60
        while (after := status_of(root, database)).state == "running":  # PostgreSQL hears of a closed socket
            assert time.monotonic() < limit
        assert (seen.state, after.state) == ("running", "stopped")
        assert {device.connected for device in seen.devices} == {True}
        assert {device.connected for device in after.devices} == {None}
        assert 2 <= seen.finished < 12
        assert [device.client for device in seen.devices] == ["client-0", "client-1", "client-2"]
        assert len(metrics_of(root)) < 12
        subprocess.run([*serve, "--resume", str(root)], check=True, capture_output=True)
        fleet.wait(timeout=120)
    assert len(metrics_of(root)) == 12
    assert status_of(root, database).state == "ended"
    return root / "weights.safetensors"


@pytest.mark.mosquitto
@pytest.mark.postgres
def test_a_killed_command_is_gone_on_with_by_command_whatever_its_record_is_kept_in(
    system, digits_bundle: Bundle, mosquitto, tmp_path: Path
) -> None:
    quiet = system.run(system.config(rounds=12, quorum=1.0), system.agents(), mosquitto.address)
    in_folder = killed_and_resumed(system, digits_bundle, mosquitto.address, tmp_path / "file")
    assert same_weights(quiet.weights, in_folder)
    with postgres() as url:
        in_server = killed_and_resumed(system, digits_bundle, mosquitto.address, tmp_path / "server", url)
    assert same_weights(quiet.weights, in_server)


@pytest.mark.matrix
@pytest.mark.parametrize("recipe", [pytest.param("fedbiad", marks=pytest.mark.matrix), "fedavg+stc"])
def test_a_damaged_model_costs_its_rounds_and_the_run_goes_on_from_the_one_before(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path, recipe: str
) -> None:
    root, run = (
        tmp_path / "run",
        ["--rounds=8", "--clients-per-round=3", "--quorum=1", "--local-steps=5", "--seed=7"],
    )
    serve = [sys.executable, "-m", "edge_fl", "serve", "--broker", str(embedded)]
    with system.fleet(system.agents(), embedded) as fleet:
        first = [*serve, str(digits_bundle.root), *run, f"--method={recipe}", f"--output={root}"]
        with subprocess.Popen(first, stderr=subprocess.DEVNULL) as process:
            until_round(root, 3, process)
            process.kill()
        finished = status_of(root).finished
        newest = root / "checkpoints" / f"{finished:05d}.safetensors"
        content = bytearray(newest.read_bytes())
        content[-5] ^= 1
        newest.write_bytes(content)
        resumed = subprocess.run([*serve, "--resume", str(root)], capture_output=True, text=True, check=False)
        assert resumed.returncode == 0, resumed.stderr
        assert f"The model of round {finished}" in resumed.stderr
        assert f"the run goes on from the model of round {finished - 1}" in resumed.stderr
        fleet.wait(timeout=120)
    ended = metrics_of(root)
    assert [metrics.round for metrics in ended] == list(range(1, 9))
    assert all(len(metrics.uplink) == 3 for metrics in ended)
    assert ended[-1].loss is not None
    assert ended[0].loss is not None
    assert ended[-1].loss < ended[0].loss


@pytest.mark.parametrize(
    "damage", ["cut", *(pytest.param(damage, marks=pytest.mark.matrix) for damage in ("no database", "a page"))]
)
def test_a_damaged_record_is_made_anew(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path, damage: str
) -> None:
    root = tmp_path / "run"
    serve = [sys.executable, "-m", "edge_fl", "serve", "--broker", str(embedded)]
    run = ["--rounds=8", "--clients-per-round=3", "--quorum=1", "--local-steps=5", "--seed=7", f"--output={root}"]
    with system.fleet(system.agents(), embedded) as fleet:
        with subprocess.Popen([*serve, str(digits_bundle.root), *run], stderr=subprocess.DEVNULL) as process:
            until_round(root, 3, process)
            process.kill()
        record, finished = root / "state.sqlite", len(metrics_of(root))
        status_of(root)  # what the log beside the file holds is in the file from now on
        content = bytearray(record.read_bytes())
        if damage == "no database":
            content[:] = b"no database" * 1000
        elif damage == "a page":
            content[4096:] = bytes(byte ^ 0xFF for byte in content[4096:])
        else:
            del content[len(content) // 2 :]
        record.write_bytes(content)
        for beside in ("-wal", "-shm"):
            (root / f"state.sqlite{beside}").unlink(missing_ok=True)
        resumed = subprocess.run([*serve, "--resume", str(root)], capture_output=True, text=True, check=False)
        assert resumed.returncode == 0, resumed.stderr
        said = " ".join(resumed.stderr.split())
        assert "is damaged" in said
        assert f"The run goes on after round {finished}" in said
        fleet.wait(timeout=120)
    assert (root / "state.sqlite.damaged-1").exists()
    ended = metrics_of(root)
    assert [metrics.round for metrics in ended] == list(range(1, 9))
    assert [len(metrics.uplink) for metrics in ended] == [3] * finished + [0] + [3] * (7 - finished)
    assert ended[-1].loss is not None
    assert ended[0].loss is not None
    assert ended[-1].loss < ended[0].loss


def test_a_record_that_was_damaged_before_the_first_round_is_over_is_refused(
    system, digits_bundle: Bundle, embedded: BrokerAddress, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "state.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(StateError, match=r"settings\.json' cannot be read"):
        resume(root, address=embedded, observer=Observer())
