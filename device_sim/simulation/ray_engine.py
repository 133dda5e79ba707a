"""Workers that are actors of a Ray cluster: on every core of its hosts, or on its GPUs.

Nothing else imports Ray, and this file only where it is asked for.
"""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from device_sim.simulation.buffer_files import BufferFiles, Packed
from device_sim.simulation.parts import PARTS_AT_ONCE, Engine, by_holder
from device_sim.simulation.trainer import Trainer, power_of_two
from device_sim.simulation.worker import Hold, Job, Train, Worker
from device_sim.simulation.worker_folder import WorkerFolder
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, RunError, RuntimeMissingError, said
from edge_fl.transport.address import is_loopback

__all__ = ["RayEngine", "check_address"]

_log = logging.getLogger(__name__)

_PARTS = 16  # of a round, however many workers there are: results do not depend on those
_FEWEST = 4  # parts, where they are small
_SMALL, _LARGEST = 8, 64  # clients of a part: of fewer a stack is slow, of more a lost actor costs much
_CONNECTION_SECONDS = 5.0
_CLOSING_SECONDS = 2.0
_ACTOR_SECONDS = 120.0  # until a cluster has room for the first worker
_SHOWN = 200  # characters of what Ray says
# What a client of HTTP/2 says first (RFC 9113, 3.4); the settings in it are empty, and a server answers with its own.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_HEAD, _SETTINGS = 9, 4
_AUTH_MODE, _TOKEN = "RAY_AUTH_MODE", "token"


class RayEngine(Engine):
    """Actors, each with a part that it trains and one that waits.

    It joins the cluster at an address, or starts one on this machine that ends with it. The bundle goes through the
    object store once, and a round's model once a round. Samples and updates go through it, too; those of actors on
    this machine go through files. A part whose actor or host is lost goes to another actor, and its updates are the
    same bits there. Where no actor is left, the round fails. Before each round it fills what room the cluster has with
    actors: a host that comes back, or is new, has work again.

    Parameters
    ----------
    bundle
        What is trained: actors write it to a folder of theirs.
    open
        Opens an actor's trainer; can be pickled.
    address
        ``HOST:PORT`` of a cluster, or None to start one here.
    workers
        How many actors: None for one on every so many ``cpus``, or every GPU, of the cluster.
    cpus
        Cores of an actor.
    gpu
        Whether an actor needs a GPU.

    Raises
    ------
    RuntimeMissingError
        When Ray is not installed.
    ConfigError
        When there is no cluster at the address, none that this version of Ray can join, or none with a host for a
        worker.
    RunError
        When the cluster has no room for an actor.
    """

    remote = True

    def __init__(
        self,
        bundle: Bundle,
        open: Callable[[Bundle], Trainer],
        *,
        address: str | None,
        workers: int | None,
        cpus: int,
        gpu: bool,
    ) -> None:
        self._ray = _ray(own=address is None)
        self._wanted, self._cpus, self._gpu, self._open = workers, cpus, gpu, open
        self._free: list[Any] = []  # actors, each as often as it could be given a part
        self._gone: set[Any] = set()
        self._awaited: dict[Any, tuple[Any, _Part | None]] = {}  # an actor by its answer; no part: it begins
        self._lost: list[_Part] = []  # that nobody trains now
        self._holds: dict[int, Any] = {}  # the actor that has the updates of a part, by its number
        self._near: dict[Any, BufferFiles] = {}  # of actors on this machine
        try:
            _join(self._ray, address, cores=cpus * workers if workers else None)
            _check_hosts(self._ray, cpus, gpu=gpu)
            self._files = self._ray.put(_files(bundle.root))
            self._node = _node()
            self._kind = self._ray.remote(_Actor).options(
                num_cpus=cpus, num_gpus=1 if gpu else 0, scheduling_strategy="SPREAD", max_restarts=0
            )
            self._hire()
            while not self._free:
                self.finished()
            hosts = sum(node["Alive"] for node in self._ray.nodes())
            _log.info("the Ray cluster has %d hosts, and %d workers begin", hosts, self.workers)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """The actors that are left, and those that begin."""
        return len(self._living())

    @property
    def room(self) -> int:
        """What actors could be given besides what they have."""
        return len(self._free)

    def part_sizes(self, count: int) -> Iterator[int]:
        """The same whatever the cluster."""
        small = min(_SMALL, count // _FEWEST)
        return repeat(power_of_two(min(max(count // _PARTS, small, 1), _LARGEST)))

    def share(self, model: bytes) -> Any:
        """A reference to it in the object store, which each host fetches once."""
        self._hire()
        return self._ray.put(model)

    def _hire(self) -> None:
        """Begin as many actors as the cluster has room for, or as are wanted; nobody waits for them."""
        room = self._wanted or _room(self._ray, self._cpus, gpu=self._gpu)
        for _ in range(room - self.workers):
            actor = self._kind.remote(self._files, self._open, self._node)
            self._awaited[actor.shared.remote()] = actor, None

    def begin(self, number: int, model: Any, job: Train | Hold) -> None:
        """Give it to an actor that has the fewest."""
        self._begin(_Part(number, model, job))

    def _begin(self, part: "_Part") -> None:
        actor = max(self._free, key=self._free.count)
        self._awaited[self._asked(actor, part.job, part.model)] = actor, part
        self._free.remove(actor)
        if isinstance(part.job, Hold):
            self._holds[part.number] = actor

    def finished(self) -> list[tuple[int, Any]]:
        """Answers that have come; none where an actor has begun, or is lost and another gets its part next time."""
        while self._lost and self._free:
            self._begin(self._lost[-1])
            self._lost.pop()
        busy = any(part is not None for _, part in self._awaited.values())
        timeout = None if busy else _ACTOR_SECONDS
        ready, _ = self._ray.wait(list(self._awaited), timeout=timeout) if self._awaited else ([], [])
        if not ready:
            raise RunError(
                "The Ray cluster has no worker to train the round: start hosts, or free some of their cores, and "
                "continue the run with --resume."
            )
        found: list[tuple[int, Any]] = []
        for answer in ready:
            actor, part = self._awaited.pop(answer)
            came = self._came(actor, answer)
            if isinstance(came, _Loss):
                self._lost += [part] if part else []
                self._forget(actor)
                continue
            if part is None and came is not None:
                with suppress(OSError):  # another user's
                    self._near[actor] = BufferFiles.open(came)
            if actor not in self._gone:
                self._free += [actor] * (1 if part else PARTS_AT_ONCE)
            found += [(part.number, came)] if part else []
        self._close_files_of_lost()
        return found

    def do_where_held(
        self, jobs: Callable[[Sequence[int]], Job], parts: Sequence[int]
    ) -> tuple[list[tuple[list[int], Any]], list[int]]:
        """All at once; what a lost actor held is lost."""
        shares = by_holder(self._holds, parts)
        self._holds.clear()
        asked = [(actor, some, self._asked(actor, jobs(some), b"")) for actor, some in shares.items()]
        answers, lost = list[tuple[list[int], Any]](), list[int]()
        for actor, some, answer in asked:
            came = self._came(actor, answer)
            if isinstance(came, _Loss):
                self._forget(actor)
                lost += some
            else:
                answers.append((some, came))
        self._close_files_of_lost()
        return answers, lost

    def _living(self) -> set[Any]:
        return {*self._free, *(actor for actor, _ in self._awaited.values())} - self._gone

    def _forget(self, actor: Any) -> None:
        """Give a lost actor nothing more, whatever else it answered before."""
        self._gone.add(actor)
        self._free = [other for other in self._free if other is not actor]

    def _close_files_of_lost(self) -> None:
        """Once all is read that such an actor answered before."""
        busy = {actor for actor, _ in self._awaited.values()}
        for actor in self._gone & self._near.keys() - busy:
            self._near.pop(actor).close()

    def _asked(self, actor: Any, job: Job, model: Any) -> Any:
        """Have an actor do a job; what stands for its answer."""
        files = self._near.get(actor)
        return actor.do.remote(files.ask(job) if files else job, model)

    def _came(self, actor: Any, answer: Any) -> Any:
        """What an actor answered, or that it is lost; raises what it could not do."""
        try:
            came = self._ray.get(answer)
            return self._near[actor].take_back(came) if isinstance(came, Packed) else came
        except self._ray.exceptions.RayTaskError:  # it is there
            raise
        except self._ray.exceptions.RayError as error:
            if actor not in self._gone:
                _log.warning("a Ray worker is lost (%s)", type(error).__name__)
            return _Loss()

    def close(self) -> None:
        """End the actors, and leave the cluster."""
        living = self._living()
        self._free.clear()
        self._awaited.clear()
        try:
            if closing := [actor.close.remote() for actor in living]:  # those that train are ended as they are
                self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSING_SECONDS)
        finally:
            self._ray.shutdown()
            for files in self._near.values():
                files.close()
            self._near.clear()


@dataclass(frozen=True)
class _Part:
    """What an actor is given, with a reference to the model that it is about."""

    number: int
    model: Any
    job: Train | Hold


class _Loss:
    """In place of the answer of an actor that is lost."""


class _Actor:
    """A worker of the cluster."""

    def __init__(self, files: dict[str, bytes], open: Callable[[Bundle], Trainer], driver: str) -> None:
        self._folder = WorkerFolder()
        root = self._folder.path / "bundle"
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        self._worker = Worker(partial(Bundle.load, root), open)
        near = _node() == driver
        self._shared = BufferFiles.make(PARTS_AT_ONCE, self._folder.path) if near else None

    def shared(self) -> Path | None:
        """Where it made files to share with the process that coordinates, if that runs on its host."""
        return self._shared.folder if self._shared else None

    def do(self, job: Job | Packed, model: bytes) -> Any:
        """As :meth:`Worker.do`."""
        if not isinstance(job, Packed):
            return self._worker.do(job, model)
        assert self._shared is not None
        return self._worker.answer(self._shared, job, self._shared.take(job), model)

    def close(self) -> None:
        """Leave nothing on its host."""
        self._folder.close()


def _node() -> str:
    """The host of the cluster that this process belongs to."""
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node


def check_address(address: str, *, insecure: bool) -> None:
    """Refuse an address that is none, or a cluster off this machine without a token.

    Whoever reaches a cluster without one runs what they like on it, and on its drivers.

    Raises ConfigError.
    """
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"A Ray cluster's address is HOST:PORT of its head, such as 10.0.0.5:6379, not '{address}'."
        )
    if insecure or is_loopback(host.strip("[]")) or os.environ.get(_AUTH_MODE) == _TOKEN:
        return
    raise ConfigError(
        f"There is no token here for the Ray cluster at '{address}': set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as its "
        "hosts have them. Whoever reaches a cluster without a token runs what they like on it: give --insecure to join "
        "such a one, on a network that you trust."
    )


def _ray(*, own: bool) -> Any:
    """Ray, which reads its settings when it is imported; where it is to start a cluster, with a token for that."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # else it reports to its maker
    if own and os.environ.get(_AUTH_MODE) != _TOKEN:
        if "ray" in sys.modules:
            raise ConfigError(
                "Ray was imported without a token, so anyone could use the cluster that it starts: set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before, or start no cluster and give its address."
            )
        os.environ |= {_AUTH_MODE: _TOKEN, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
    except ImportError as error:
        raise RuntimeMissingError("--engine ray needs Ray: pip install 'edge-fl[ray]'.") from error
    if ray.is_initialized():
        raise ConfigError("This process uses a Ray cluster already: call ray.shutdown() before the simulation.")
    return ray


def _join(ray: Any, address: str | None, *, cores: int | None) -> None:
    """Connect to a cluster, or start one."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)  # never one that it finds
        return
    host, _, port = address.rpartition(":")
    try:  # for minutes Ray would ask an address that is not there
        _knock(host.strip("[]"), int(port))
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"The Ray cluster at '{address}' cannot be joined ({said(error)[:_SHOWN]}): set RAY_AUTH_TOKEN as its "
            "hosts have it, see `ray status` on its head, and have the same versions of Python and Ray here and there."
        ) from error


def _knock(host: str, port: int) -> None:
    """Raise OSError where nothing listens, or something that does not speak HTTP/2, as Ray does by gRPC."""
    with socket.create_connection((host, port), timeout=_CONNECTION_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return  # it hears nothing in the clear
        connection.sendall(_PREFACE)
        answer = b""
        while len(answer) < _FRAME_HEAD and (more := connection.recv(_FRAME_HEAD - len(answer))):
            answer += more
    if len(answer) < _FRAME_HEAD or answer[3] != _SETTINGS:
        raise OSError("what listens there is no Ray cluster")


def _check_hosts(ray: Any, cpus: int, *, gpu: bool) -> None:
    """Raise ConfigError where no host could ever have a worker."""
    hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((int(host.get("CPU", 0)) for host in hosts), default=0)
    if most < cpus:
        raise ConfigError(
            f"A worker takes {cpus} cores (--threads), and no host of the Ray cluster has more than {most}: lower "
            "--threads, or start `ray start` with more --num-cpus."
        )
    if gpu and not any(host.get("GPU", 0) for host in hosts):
        raise ConfigError("No host of the Ray cluster has a GPU: leave --device cuda out.")


def _room(ray: Any, cpus: int, *, gpu: bool) -> int:
    """How many workers fit the cluster."""
    resources = ray.cluster_resources()
    room = int(resources.get("CPU", 0)) // cpus
    return max(min(room, int(resources.get("GPU", 0))) if gpu else room, 1)


def _files(root: Path) -> dict[str, bytes]:
    """A bundle's files by their names."""
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}
