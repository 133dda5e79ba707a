"""Who takes part in a simulation, and what computes their training: all of it besides the run's own settings."""

from numbers import Real

import msgspec

from broker.settings import RunSettings
from device_sim.simulation.links import find_link
from device_sim.simulation.parts import PartsTrainer
from device_sim.simulation.processes import ProcessEngine
from device_sim.simulation.ray_engine import RayEngine, check_address
from device_sim.simulation.time_model import TIER_SLOWDOWNS
from device_sim.simulation.trainer import STACKED_RUNTIME, LocalTrainer, RuntimeTrainer, Trainer
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.field_types import settle_fields
from edge_fl.data.partition import IID, Kind
from edge_fl.recipes.own import use_code
from edge_fl.runtimes.base import open_runtime

__all__ = ["Population", "RayCluster", "SimulationSettings", "TrainerSettings", "World"]


class Population(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clients of a simulation: ``client-0`` ..., parts of the bundle's data set cut as ``kind`` says.

    Client i is of tier i mod ``tiers``, or, where tiers differ in size, ``mix`` says how many clients there are of
    each: with (3, 1) the tiers of clients 0, 1, 2 ... are 0, 1, 0, 0, 0, 1, 0, 0 ... The first are one of each tier.
    ``test_share`` of each one's samples are held out (:class:`edge_fl.data.held_out.HeldOut`).
    """

    clients: int
    tiers: int = 1
    kind: Kind = IID
    mix: tuple[int, ...] = ()
    test_share: float = 0.0

    def __post_init__(self) -> None:
        settle_fields(self)
        if not 0 <= self.test_share < 1:
            raise ConfigError(f"The share of samples to hold out is in [0, 1), not {self.test_share:g}.")
        if self.clients < 1 or self.tiers < 1:
            raise ConfigError(f"A simulation needs clients and tiers, not {self.clients} in {self.tiers} tiers.")
        if self.mix and (len(self.mix) != self.tiers or min(self.mix) < 1):
            raise ConfigError(
                f"The mix of {self.tiers} tiers is a whole number above 0 for each, not "
                f"{', '.join(map(str, self.mix))}."
            )

    def tier(self, client: int) -> int:
        """The tier of client number ``client``."""
        if not self.mix:
            return client % self.tiers
        turns = [t for turn in range(max(self.mix)) for t, count in enumerate(self.mix) if turn < count]
        return turns[client % len(turns)]

    def share(self, fraction: float) -> int:
        """How many clients a fraction of them is, rounded down; ConfigError when it is none of them."""
        given: object = fraction
        if not isinstance(given, Real) or not 0 < fraction <= 1:
            raise ConfigError(f"The fraction of clients picked a round is in (0, 1], not {fraction}.")
        count = int(fraction * self.clients + 1e-9)  # 0.29 * 100 is a little less than 29
        if count < 1:
            raise ConfigError(f"A fraction of {fraction} picks none of {self.clients} clients; raise it.")
        return count


class RayCluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a round's clients are trained: on the cluster at ``address``, ``HOST:PORT``, or one that is started here.

    ``workers`` is how many actors there are (None: as many as fit). A cluster off this machine needs a token, or
    ``insecure``.
    """

    address: str | None = None
    workers: int | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        settle_fields(self)
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"Training takes at least 1 process, not {self.workers}.")


class TrainerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How clients are trained: many at once (``stacked``), or each through ``runtime`` (None: onnx) as its agent would.

    ``device`` (``cpu`` or ``cuda``) is the stacked trainer's; ``threads`` are CPU threads, of training and evaluation.
    With several ``processes``, or on a ``ray`` cluster, each worker trains some of a round's clients, on as many
    threads. ``code`` is the run's.
    """

    kind: str
    runtime: str | None = None
    device: str = "cpu"
    threads: int = 1
    processes: int = 1
    code: tuple[str, ...] = ()
    ray: RayCluster | None = None

    def __post_init__(self) -> None:
        settle_fields(self)
        if self.kind not in ("stacked", "runtime"):
            raise ConfigError(f"There is no trainer '{self.kind}'; there are stacked and runtime.")
        if self.kind == "runtime" and self.device != "cpu":
            raise ConfigError(f"A runtime trains on the CPU, not on '{self.device}'; use --trainer stacked.")
        if self.kind == "stacked" and self.runtime is not None:
            raise ConfigError(f"The stacked trainer does not train in '{self.runtime}'; use --trainer runtime.")
        if self.threads < 1 or self.processes < 1:
            raise ConfigError(
                f"Training takes at least 1 thread and 1 process, not {self.threads} and {self.processes}."
            )
        if self.processes > 1 and self.device != "cpu":
            raise ConfigError(
                f"Several processes train on the CPU, not on '{self.device}'; leave --processes out."
            )

    @property
    def programs(self) -> str:
        """The runtime whose programs are run."""
        return STACKED_RUNTIME if self.kind == "stacked" else self.runtime or "onnx"

    def moved(self, ray: RayCluster) -> "TrainerSettings":
        """The same on another cluster, of as many workers; ConfigError where there was none."""
        if self.ray is None:
            raise ConfigError("The run was not begun with --engine ray: leave --ray-address out.")
        return msgspec.structs.replace(self, ray=msgspec.structs.replace(ray, workers=self.ray.workers))

    def open(self, bundle: Bundle) -> Trainer:
        """The trainer; raises RuntimeMissingError, or ConfigError on an unknown device, where it cannot be had."""
        use_code(self.code)
        if self.processes > 1:
            self._in_this_process(bundle)  # refuses here what each of them would
            alone = msgspec.structs.replace(self, processes=1)
            return PartsTrainer(ProcessEngine(bundle, alone.open, self.processes))
        if self.ray is not None:
            if self.ray.address is not None:
                check_address(self.ray.address, insecure=self.ray.insecure)
            if self.device == "cpu":
                self._in_this_process(bundle)  # as above
            alone = msgspec.structs.replace(self, ray=None)
            engine = RayEngine(
                bundle,
                alone.open,
                address=self.ray.address,
                workers=self.ray.workers,
                cpus=self.threads,
                gpu=self.device != "cpu",
            )
            return PartsTrainer(engine)
        return self._in_this_process(bundle)

    def _in_this_process(self, bundle: Bundle) -> LocalTrainer:
        if self.kind == "runtime":
            return RuntimeTrainer(open_runtime(self.programs, bundle, threads=self.threads))
        from device_sim.simulation.stacked import StackedTrainer  # torch's import takes seconds, in each worker

        return StackedTrainer(bundle, device=self.device, threads=self.threads)


class World(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes a simulation take virtual time: its rounds then have deadlines, and clients come and go.

    ``link`` is that of every client (:func:`device_sim.simulation.links.find_link`). A local step takes ``steps``
    seconds, by the tier that is trained, times the ``slowdowns`` of the client's tier; the last of each serves every
    tier beyond. Without steps they are measured on this machine. A round's training takes up to a share ``spread``
    less or more than that. Clients are there for an ``online`` share of the time, for ``stay`` seconds on average, and
    ``failures`` is the share of tasks that come to nothing.
    """

    link: str
    steps: tuple[float, ...] = ()
    slowdowns: tuple[float, ...] = TIER_SLOWDOWNS
    spread: float = 0.0
    online: float = 1.0
    stay: float = 600.0
    failures: float = 0.0

    def __post_init__(self) -> None:
        settle_fields(self)
        find_link(self.link)
        for name, values in (("steps", self.steps), ("slowdowns", self.slowdowns), ("stay", (self.stay,))):
            if not all(0 < value < float("inf") for value in values):
                raise ConfigError(f"The {name} of a simulated world are above 0, not {values}.")
        if not self.slowdowns:
            raise ConfigError("A simulated world needs a slowdown for each tier, such as 1,2,4.")
        if not 0 < self.online <= 1:
            raise ConfigError(f"Clients are online for a share of the time in (0, 1], not {self.online:g}.")
        for name in ("spread", "failures"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"The {name} of a simulated world is a share in [0, 1), not {getattr(self, name):g}."
                )


class SimulationSettings(RunSettings, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="simulate"):
    """What a simulation was begun with; ``data`` is as :func:`edge_fl.data.splits.train_samples` takes it.

    ``objects`` says that data were given as objects, which a record cannot keep. Without a ``world`` no time passes.
    """

    population: Population
    trainer: TrainerSettings
    data: str | None = None
    objects: bool = False
    world: World | None = None
