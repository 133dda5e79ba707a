"""Clients trained by the actors of a Ray cluster."""

import importlib.util
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from broker.observer import Observer
from device_sim.simulation.buffer_files import BufferFiles
from device_sim.simulation.settings import RayCluster, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.runs.metrics import RoundMetrics
from tests.device_sim.test_held_round import RECIPES
from tests.device_sim.test_processes import children, simulation

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
# Read when Ray is imported, by whichever of these tests comes first.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

LOCAL = {"object_store_memory": 100 << 20, "include_dashboard": False}


def trained(*arguments: Any, **changes: Any) -> dict[str, bytes]:
    weights = load_file(simulation(*arguments, rounds=3, **changes).run().weights)
    return {name: array.tobytes() for name, array in weights.items()}


@pytest.fixture(scope="module")
def alone(torch_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return trained(torch_bundle, tmp_path_factory.mktemp("alone") / "run", TrainerSettings("runtime"))


def ray_settings(workers: int | None = 2, address: str | None = None, kind: str = "runtime") -> TrainerSettings:
    return TrainerSettings(kind, ray=RayCluster(address, workers))


class Watcher(Observer):
    """Looks at the files without a name that actors share with this process."""

    def __init__(self) -> None:
        self.bytes = dict[str, int]()

    def device(self, client: str, status: str) -> None:
        for actor in actors():
            for opened in Path(f"/proc/{actor}/fd").iterdir():
                with suppress(OSError):
                    name, _, ending = str(opened.readlink()).rpartition(" ")
                    if ending == "(deleted)" and "/edge-fl-" in name:
                        self.bytes[name] = max(self.bytes.get(name, 0), opened.stat().st_size)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.matrix), 3])
def test_any_number_of_workers_trains_what_one_process_does(
    torch_bundle: Bundle, tmp_path: Path, alone: dict[str, bytes], workers: int
) -> None:
    """On this machine large buffers go through files, and actors leave nothing in the folder for temporary ones."""
    watcher = Watcher()
    run = simulation(torch_bundle, tmp_path / "run", ray_settings(workers), watcher, rounds=3)
    weights = load_file(run.run().weights)
    run.close()  # again
    assert {name: array.tobytes() for name, array in weights.items()} == alone
    assert 1 <= len({Path(name).parent for name in watcher.bytes}) <= workers  # the others began too late
    assert sum(watcher.bytes.values()) > 0
    assert not any(Path(name).parents[1].exists() for name in watcher.bytes)


@pytest.mark.matrix
def test_actors_of_another_user_answer_through_ray(
    torch_bundle: Bundle, tmp_path: Path, alone: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> BufferFiles:
        raise PermissionError(folder)

    monkeypatch.setattr(BufferFiles, "open", refused)
    assert trained(torch_bundle, tmp_path / "run", ray_settings(2)) == alone


@pytest.mark.matrix
def test_stacks_do_not_depend_on_how_many_workers_there_are(torch_bundle: Bundle, tmp_path: Path) -> None:
    found = [trained(torch_bundle, tmp_path / str(n), ray_settings(n, kind="stacked")) for n in (1, 2)]
    assert found[0] == found[1]


class Killer(Observer):
    """Kills an actor once a client is done, the first or ``after``; all of them if told so."""

    def __init__(self, *, everyone: bool = False, after: str = "") -> None:
        self.killed: list[int] = []
        self._everyone, self._after = everyone, after

    def device(self, client: str, status: str) -> None:
        if self.killed or self._after not in ("", client):
            return
        for process in actors()[: None if self._everyone else 1]:
            os.kill(process, signal.SIGKILL)
            self.killed.append(process)


def actors() -> list[int]:
    """The processes of our actors, which Ray names after their class: none of another test's beside this one."""
    found, waiting = list[int](), [os.getpid()]
    while waiting:
        below = children(waiting.pop())
        waiting += below
        for process in below:
            with suppress(OSError):
                if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::_Actor"):
                    found.append(process)
    return found


def awaited_actors(count: int) -> int:
    """How many there are, once there are so many or 30 s have passed."""
    until = time.monotonic() + 30
    while len(actors()) != count and time.monotonic() < until:
        time.sleep(0.1)
    return len(actors())


@pytest.mark.matrix
def test_what_a_killed_actor_had_is_trained_by_another(
    torch_bundle: Bundle, tmp_path: Path, alone: dict[str, bytes]
) -> None:
    killer = Killer()
    assert trained(torch_bundle, tmp_path / "run", ray_settings(2), killer) == alone
    assert len(killer.killed) == 1


@pytest.mark.matrix
def test_of_exact_sums_another_trains_again_what_a_killed_actor_held(torch_bundle: Bundle, tmp_path: Path) -> None:
    alone = trained(torch_bundle, tmp_path / "alone", TrainerSettings("runtime"), exact_sums=True)
    assert trained(torch_bundle, tmp_path / "run", ray_settings(2), Killer(), exact_sums=True) == alone


@pytest.mark.matrix
def test_updates_that_are_lost_before_they_are_added_up_are_trained_again(
    torch_bundle: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All actors are killed when the last client is trained, and others begin."""
    alone = trained(torch_bundle, tmp_path / "alone", TrainerSettings("runtime"), exact_sums=True)
    killer = Killer(everyone=True, after="client-8")
    assert trained(torch_bundle, tmp_path / "run", ray_settings(2), killer, exact_sums=True) == alone
    assert killer.killed
    assert "round 1: parts that a lost worker held are trained again (5)" in caplog.text


@pytest.mark.matrix
@pytest.mark.parametrize("recipe", RECIPES)
def test_exact_sums_of_seven_actors_are_those_of_one_process(
    torch_bundle: Bundle, tmp_path: Path, recipe: str
) -> None:
    changes = {**RECIPES[recipe], "exact_sums": True}
    one = trained(torch_bundle, tmp_path / "one", TrainerSettings("runtime"), **changes)
    assert trained(torch_bundle, tmp_path / "ray", ray_settings(7), **changes) == one


@pytest.mark.matrix
def test_without_an_actor_the_round_fails_and_goes_on_later(
    torch_bundle: Bundle, tmp_path: Path, alone: dict[str, bytes]
) -> None:
    root = tmp_path / "run"
    with pytest.raises(RunError, match="The Ray cluster has no worker to train the round"):
        trained(torch_bundle, root, ray_settings(2), Killer(everyone=True))
    weights = Simulation.resume(root, observer=Observer()).run().weights
    assert {name: array.tobytes() for name, array in load_file(weights).items()} == alone


@pytest.mark.matrix
def test_what_goes_wrong_in_an_actor_is_told_as_it_is(torch_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="lower the step size"):
        trained(torch_bundle, tmp_path / "run", ray_settings(2), lr=1e30)


@pytest.mark.matrix
def test_a_worker_that_fits_no_host_is_told(torch_bundle: Bundle, tmp_path: Path, cluster: Any) -> None:
    trainer = TrainerSettings("runtime", threads=2, ray=RayCluster(cluster.address, insecure=True))
    with pytest.raises(ConfigError, match=r"takes 2 cores .* no host of the Ray cluster has more than 1: lower"):
        trained(torch_bundle, tmp_path / "run", trainer)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes of a core each, beside a head without."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **LOCAL})
    made.ours = [made.add_node(num_cpus=1, **LOCAL) for _ in range(2)]
    yield made
    made.shutdown()


class NodeChanger(Observer):
    """Takes a node away once the first client is done, one that is not this process's own; a round later, gives one."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.workers: list[int] = []

    def device(self, client: str, status: str) -> None:
        import ray

        if len(self._cluster.ours) == 2 and not self.workers:
            own = ray.get_runtime_context().get_node_id()
            victim = next(node for node in self._cluster.ours if node.node_id != own)
            self._cluster.ours.remove(victim)
            self._cluster.remove_node(victim, allow_graceful=False)

    def round_closed(self, metrics: RoundMetrics) -> None:
        self.workers.append(awaited_actors({1: 1, 3: 2}.get(metrics.round, len(actors()))))
        if len(self._cluster.ours) == 1:
            self._cluster.ours.append(self._cluster.add_node(num_cpus=1, **LOCAL))
            self._cluster.wait_for_nodes()


@pytest.mark.matrix
def test_a_host_that_is_lost_costs_no_bit_and_a_new_one_has_work(
    torch_bundle: Bundle, tmp_path: Path, alone: dict[str, bytes], cluster: Any
) -> None:
    trainer = TrainerSettings("runtime", ray=RayCluster(cluster.address, insecure=True))
    observer = NodeChanger(cluster)
    assert trained(torch_bundle, tmp_path / "run", trainer, observer) == alone
    assert observer.workers[0] == 1
    assert observer.workers[-1] == 2


class DrawnLoss(Observer):
    """Kills an actor, or takes a node away and gives another, once so many clients are done."""

    def __init__(self, cluster: Any, rng: random.Random, *, node: bool) -> None:
        self._cluster, self._rng, self._node = cluster, rng, node
        self._left = rng.randrange(27)  # of three rounds of nine clients
        self.lost = 0

    def device(self, client: str, status: str) -> None:
        self._left -= 1
        if self._left != -1:
            return
        if self._node:
            self._lose_node()
        else:
            os.kill(self._rng.choice(actors()), signal.SIGKILL)
        self.lost += 1

    def _lose_node(self) -> None:
        import ray

        own = ray.get_runtime_context().get_node_id()
        victim = next(node for node in self._cluster.ours if node.node_id != own)
        self._cluster.ours.remove(victim)
        self._cluster.remove_node(victim, allow_graceful=False)
        self._cluster.ours.append(self._cluster.add_node(num_cpus=1, **LOCAL))
        self._cluster.wait_for_nodes()


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_losses_at_twenty_drawn_points_cost_no_bit(torch_bundle: Bundle, tmp_path: Path, cluster: Any) -> None:
    rng = random.Random(11)
    alone = trained(torch_bundle, tmp_path / "alone", TrainerSettings("runtime"), exact_sums=True)
    trainer = TrainerSettings("runtime", ray=RayCluster(cluster.address, insecure=True))
    for number in range(20):
        observer = DrawnLoss(cluster, rng, node=number % 2 == 1)
        assert trained(torch_bundle, tmp_path / str(number), trainer, observer, exact_sums=True) == alone
        assert observer.lost == 1


def test_an_address_without_a_cluster_is_told(torch_bundle: Bundle, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    trainer = TrainerSettings("runtime", ray=RayCluster(f"127.0.0.1:{port}"))
    with pytest.raises(ConfigError, match=f"at '127.0.0.1:{port}' cannot be joined .*refused"):
        trained(torch_bundle, tmp_path / "run", trainer)


def test_what_is_no_ray_cluster_is_told(torch_bundle: Bundle, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        trainer = TrainerSettings("runtime", ray=RayCluster(f"127.0.0.1:{server.server_port}"))
        with pytest.raises(ConfigError, match=r"cannot be joined .*what listens there is no Ray cluster"):
            trained(torch_bundle, tmp_path / "run", trainer)
        server.shutdown()


def without_token() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--engine=ray", "--ray-address=ray://127.0.0.1:10001"], "is HOST:PORT of its head"),
        (["--engine=ray", "--ray-address=head:70000"], "is HOST:PORT of its head"),
        (
            ["--engine=ray", "--ray-address=10.0.0.5:6379"],
            "There is no token here for the Ray cluster at '10.0.0.5:6379': set RAY_AUTH_MODE=token",
        ),
        (["--engine=ray", "--processes=0"], "at least 1 process"),
        (["--ray-address=127.0.0.1:6379"], "Only --engine ray has an address"),
    ],
)
def test_bad_addresses_are_told(torch_bundle: Bundle, tmp_path: Path, options: list[str], says: str) -> None:
    command = [sys.executable, "-m", "edge_fl", "simulate", str(torch_bundle.root), "-o", str(tmp_path / "run")]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, timeout=120, env=without_token()
    )
    assert says in " ".join(done.stderr.split())
    assert done.returncode not in (0, 1)


def test_nothing_imports_ray_or_torch_unasked() -> None:
    code = "import sys, device_sim.simulation.simulate, edge_fl; assert not {'ray', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


_STRANGER = """
import os, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except ConnectionError:
    sys.exit(3)
"""
_OWNER = """
import subprocess, sys
from pathlib import Path
from device_sim.simulation.settings import RayCluster, TrainerSettings
from edge_fl.core.bundle import Bundle
trainer = TrainerSettings("runtime", ray=RayCluster(workers=1)).open(Bundle.load(Path(sys.argv[1])))
import ray, os
address = ray.get_runtime_context().gcs_address
env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
done = subprocess.run([sys.executable, "-c", sys.argv[2], address], env=env)
trainer.close()
sys.exit(done.returncode)
"""


@pytest.mark.matrix
def test_strangers_cannot_use_the_cluster_that_a_simulation_starts(torch_bundle: Bundle) -> None:
    env = without_token()
    command = [sys.executable, "-c", _OWNER, str(torch_bundle.root), _STRANGER]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 3
    assert "InvalidAuthToken" in done.stderr


def test_ray_that_was_imported_without_a_token_starts_no_cluster(torch_bundle: Bundle) -> None:
    env = without_token()
    command = [sys.executable, "-c", "import ray\n" + _OWNER, str(torch_bundle.root), _STRANGER]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert "Ray was imported without a token" in done.stderr


@pytest.mark.matrix
def test_a_cluster_that_the_process_uses_is_left_alone(torch_bundle: Bundle) -> None:
    code = (
        "import ray\nray.init('local', num_cpus=1, include_dashboard=False)\n"
        + _OWNER.partition("import ray, os")[0].replace("trainer =", "try:\n    trainer =")
        + "except Exception as error:\n    print(error, ray.is_initialized())\n"
    )
    command = [sys.executable, "-c", code, str(torch_bundle.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert "uses a Ray cluster already: call ray.shutdown() before the simulation. True" in done.stdout
