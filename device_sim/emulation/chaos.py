"""A run that everything happens to: processes killed, messages lost and damaged, links that stall and break.

What breaks, and in which order, is drawn from a seed, and none of it may change the weights: a round that needs every
device waits for it, so they must be those of a quiet run, to the bit.
"""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from safetensors.numpy import load_file

from broker.observer import Observer
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.bad_link import BadLink, Faults
from device_sim.emulation.mosquitto import Mosquitto, free_port
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.transport.address import BrokerAddress

__all__ = ["BROKERS", "FAULTS", "Chaos", "Disturbed", "same_weights"]

BROKERS = ("mosquitto", "embedded")
"""What is between coordinator and devices: a process of its own, or a part of the coordinator's."""

_STALL_SECONDS, _BACK_SECONDS, _POLL_SECONDS = 3.0, 0.5, 0.05
_BATCH, _LR = 20, 0.1
FAULTS = Faults(drop=0.01, duplicate=0.02, delay=0.05, corrupt=0.01)


class Chaos(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is run, and how often something breaks: within a second of the end of every ``every``-th round.

    Each of the ``devices`` has an equal part of the bundle's data set, and is asked in each of the ``rounds``.
    """

    method: str = "fedbiad"
    devices: int = 3
    rounds: int = 20
    local_steps: int = 5
    broker: str = "mosquitto"
    seed: int = 0
    every: int = 2
    minutes: float = 10.0

    def __post_init__(self) -> None:
        if self.broker not in BROKERS:
            raise ConfigError(f"Chaos runs on {' or '.join(BROKERS)}, not on '{self.broker}'.")
        if self.every < 1 or not self.minutes > 0:
            raise ConfigError(
                f"Rounds between troubles and minutes are above 0, not {self.every} and {self.minutes:g}."
            )

    def run(self, bundle: Bundle, root: Path, report: Callable[[str], None] = lambda _: None) -> "Disturbed":
        """Make the run in ``root``; raises RunError when it does not end in time, or not well."""
        return _Run(self, bundle, root, report).disturbed()

    def quiet(self, bundle: Bundle, root: Path) -> Path:
        """The final weights of the same devices, each through its runtime, without a network between."""
        config = RunConfig(
            run="quiet",
            method=self.method,
            parameters={},
            rounds=self.rounds,
            clients_per_round=self.devices,
            local_steps=self.local_steps,
            batch=_BATCH,
            lr=_LR,
            seed=self.seed,
        )
        simulation = Simulation(
            bundle=bundle,
            config=config,
            population=Population(self.devices),
            trainer=TrainerSettings("runtime"),
            root=root,
            observer=Observer(),
        )
        return simulation.run().weights


@dataclass(frozen=True)
class Disturbed:
    """A run that ended: its final weights, how often what happened, its rounds, and how long it took."""

    weights: Path
    happened: Counter[str]
    rounds: tuple[RoundMetrics, ...]
    seconds: float


@dataclass
class _Run:
    """One run of ``chaos`` and the processes it consists of."""

    chaos: Chaos
    bundle: Bundle
    root: Path
    report: Callable[[str], None]
    happened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.chaos.seed)
        self._folder = self.root / "run"
        self.root.mkdir(parents=True, exist_ok=True)

    def disturbed(self) -> Disturbed:
        started = time.monotonic()
        with ExitStack() as stack:
            self._broker = None
            address = BrokerAddress("127.0.0.1", free_port())
            if self.chaos.broker == "mosquitto":
                self._broker = stack.enter_context(Mosquitto(self.root))
                address = self._broker.address
            self._links = [stack.enter_context(BadLink(address, FAULTS, seed=i)) for i in range(2)]
            self._serve = self._command(self._links[0].address if self._broker else address)
            self._start_coordinator()
            stack.callback(self._end_coordinator)
            agents = [
                AgentProcess(f"client-{i}", f"{self.bundle.manifest.dataset}:{i}/{self.chaos.devices}")
                for i in range(self.chaos.devices)
            ]
            self._fleet = stack.enter_context(
                Fleet(
                    agents,
                    address=self._links[1].address,
                    root=self.root / "fleet",
                    once=False,
                    connect_timeout=60 * self.chaos.minutes,
                )
            )
            self._break_until_over(started + 60 * self.chaos.minutes)
        rounds = tuple(
            msgspec.json.decode(line, type=RoundMetrics)
            for line in (self._folder / "metrics.jsonl").read_bytes().splitlines()
        )
        return Disturbed(self._folder / "weights.safetensors", self.happened, rounds, time.monotonic() - started)

    def _break_until_over(self, until: float) -> None:
        """Break one thing after another until the coordinator has ended by itself: all kinds, and again in turn."""
        coming, due = list(self._troubles()), self.chaos.every
        while (code := self._coordinator.poll()) is None:
            if time.monotonic() > until:
                raise RunError(
                    f"The run did not end within {self.chaos.minutes:g} minutes; logs are in '{self.root}'."
                )
            if self._rounds() < due:
                time.sleep(_POLL_SECONDS)
                continue
            time.sleep(self._random.random())
            name, trouble = coming.pop()
            self.happened[name] += 1
            self.report(f"round {self._rounds() + 1}: {name}")
            trouble()
            coming, due = coming or list(self._troubles()), due + self.chaos.every
        if code != 0:
            raise RunError(f"The coordinator ended with exit code {code}; its log is in '{self.root}'.")

    def _rounds(self) -> int:
        metrics = self._folder / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def _troubles(self) -> Sequence[tuple[str, Callable[[], None]]]:
        troubles: list[tuple[str, Callable[[], None]]] = [
            ("device killed", self._kill_device),
            ("coordinator killed", self._kill_coordinator),
            ("link stalled", lambda: self._random.choice(self._links).stall(_STALL_SECONDS)),
            ("connections broken", lambda: self._random.choice(self._links).reset()),
        ]
        if self._broker is not None:
            troubles.append(("broker killed", self._kill_broker))
        self._random.shuffle(troubles)
        return troubles

    def _kill_device(self) -> None:
        client = f"client-{self._random.randrange(self.chaos.devices)}"
        self._fleet.kill(client)
        time.sleep(_BACK_SECONDS)
        self._fleet.start(client)

    def _kill_broker(self) -> None:
        assert self._broker is not None
        self._broker.kill()
        time.sleep(_BACK_SECONDS)
        self._broker.start()

    def _kill_coordinator(self) -> None:
        self._end_coordinator()
        time.sleep(_BACK_SECONDS)
        self._start_coordinator()

    def _end_coordinator(self) -> None:
        self._coordinator.kill()
        self._coordinator.wait()

    def _start_coordinator(self) -> None:
        begun = self._rounds() > 0  # nothing is killed before
        how = ["--resume", str(self._folder)] if begun else self._settings()
        with (self.root / "coordinator.log").open("ab") as log:
            self._coordinator = subprocess.Popen(
                [*self._serve, *how], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def _command(self, address: BrokerAddress) -> list[str]:
        serve = [sys.executable, "-m", "edge_fl", "serve", "--connect-timeout=60"]
        if self._broker is None:
            return [*serve, f"--port={address.port}"]
        return [*serve, f"--broker={address}"]

    def _settings(self) -> list[str]:
        """A round needs every device: whoever is missing is waited for."""
        chaos = self.chaos
        return [
            *(str(self.bundle.root), f"--output={self._folder}", f"--method={chaos.method}"),
            *(f"--rounds={chaos.rounds}", f"--local-steps={chaos.local_steps}", f"--seed={chaos.seed}"),
            *(f"--clients-per-round={chaos.devices}", "--quorum=1", f"--batch={_BATCH}", f"--lr={_LR}"),
        ]


def same_weights(one: Path, other: Path) -> bool:
    """Whether two safetensors files hold the same tensors, to the bit."""
    mine, theirs = load_file(one), load_file(other)
    return mine.keys() == theirs.keys() and all(mine[n].tobytes() == theirs[n].tobytes() for n in mine)
