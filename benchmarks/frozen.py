"""A large frozen model with small adapters, trained by real agents: what each holds of memory, and what it fetches."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.transformer import Decoder
from broker.api import serve
from device_sim.emulation.agent_processes import AgentProcess, Fleet
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.bundle import Bundle
from edge_fl.core.frozen import FROZEN, count_frozen
from edge_fl.core.inputs import Input
from edge_fl.measure.table import Result, Row
from edge_fl.runs.run import Run
from edge_fl.transport.address import BrokerAddress
from exporter.export import Target, check_model, export_bundle
from exporter.fine_tuning import train_only
from exporter.frozen_dtype import FrozenDType

__all__ = ["FrozenSetting", "bench_frozen"]

_LENGTH, _BATCH, _STEPS, _SAMPLES = 32, 4, 2, 24
_TRAIN = ("lora:q_proj,v_proj,fc1,fc2:r=8",)
_PAUSE = 0.25  # seconds between two looks at the agents


@dataclass(frozen=True)
class FrozenSetting:
    """A decoder's ``width`` and ``depth``, its ``vocabulary``, and how many ``agents`` train it for ``rounds``; in each
    run the bundle stores frozen matrices as one of ``dtypes``.
    """

    width: int
    depth: int
    vocabulary: int
    agents: int
    rounds: int
    dtypes: tuple[FrozenDType, ...] = ("float32",)

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        return (
            f"edge-fl bench frozen --width {self.width} --depth {self.depth} --vocabulary {self.vocabulary} "
            f"--agents {self.agents} --rounds {self.rounds}"
            + "".join(f" --frozen-dtype {dtype}" for dtype in self.dtypes)
        )

    def target(self, dtype: FrozenDType) -> Target:
        """What its model is exported as."""
        tokens = Input((_LENGTH,), "int64")
        return Target(
            "decoder",
            "",
            tokens,
            self.vocabulary,
            ("onnx",),
            target=tokens,
            widths=(1000,),
            batch=_BATCH,
            loss="sequence_cross_entropy",
            frozen_dtype=dtype,
        )

    def build(self) -> torch.nn.Module:
        """The model with its adapters."""
        torch.manual_seed(0)
        model = Decoder(
            width=self.width, heads=self.width // 64, depth=self.depth, vocabulary=self.vocabulary, length=_LENGTH
        )
        return train_only(model, _TRAIN)


def bench_frozen(setting: FrozenSetting, report: Callable[[str], None]) -> Result:
    """Train it, and a tiny model of the same kind, whose agents say what libraries and idle processes hold.

    Raises
    ------
    EdgeFLError
        As :func:`exporter.export.export_bundle` and :func:`broker.api.serve` do.
    """
    idle = FrozenSetting(width=64, depth=1, vocabulary=64, agents=1, rounds=10)
    with TemporaryDirectory() as scratch:
        tiny = _trained(idle, "float32", Path(scratch) / "tiny", report)
        found = {dtype: _trained(setting, dtype, Path(scratch) / dtype, report) for dtype in setting.dtypes}
    return Result(
        title="A large frozen model",
        command=setting.command,
        about=f"A decoder of width {setting.width} and {setting.depth} layers with adapters of rank 8 on q, v and both "
        f"dense layers, {_LENGTH} tokens a text and {_BATCH} texts a batch, {_STEPS} steps a round in onnxruntime, on "
        "one machine. Memory is the largest proportional set size of an agent and its process of programs, over all "
        "agents and the whole run; idle is that of agents of a tiny model of the same kind. `--check` says what a step "
        "takes beside the loaded libraries.",
        rows=[
            _row(idle, "float32", tiny, tiny),
            *(_row(setting, dtype, large, tiny) for dtype, large in found.items()),
        ],
    )


@dataclass(frozen=True)
class _Found:
    """What one run showed; sizes in bytes."""

    bundle_frozen: int
    frozen: int
    trained: int
    said: int
    peak: int
    seconds: float
    run: Run

    def fetched(self, rounds: slice) -> float:
        """Bytes a device and round."""
        sent = [size for metrics in self.run.metrics[rounds] for size in metrics.downlink.values()]
        return float(np.mean(sent)) if sent else 0.0


def _trained(setting: FrozenSetting, dtype: FrozenDType, root: Path, report: Callable[[str], None]) -> _Found:
    model, target = setting.build(), setting.target(dtype)
    report(f"width {setting.width}: memory by --check")
    said = check_model(model, target).memory[1000]
    bundle = export_bundle(
        model, target, root / "bundle", report=lambda text: report(f"width {setting.width}: {text}")
    )
    report(f"width {setting.width}: {setting.agents} agents train")
    began = time.monotonic()
    run, peak = _run(setting, bundle, root)
    return _Found(
        bundle_frozen=(bundle.root / FROZEN).stat().st_size,
        frozen=count_frozen(bundle.layout),
        trained=bundle.layout.size,
        said=said,
        peak=peak,
        seconds=time.monotonic() - began,
        run=run,
    )


def _run(setting: FrozenSetting, bundle: Bundle, root: Path) -> tuple[Run, int]:
    """The finished run, and the most that an agent held."""
    texts = np.random.default_rng(0).integers(0, setting.vocabulary, (_SAMPLES, _LENGTH + 1))
    np.savez(root / "texts.npz", x=texts[:, :-1], y=texts[:, 1:])
    port = free_port()
    agents = [AgentProcess(f"agent-{i}", f"npz:{root / 'texts.npz'}") for i in range(setting.agents)]
    fleet = Fleet(agents, address=BrokerAddress("127.0.0.1", port), root=root / "agents", connect_timeout=60)
    with fleet, _watched(fleet) as peak:
        run = serve(
            bundle,
            port=port,
            rounds=setting.rounds,
            clients_per_round=setting.agents,
            min_clients=setting.agents,
            local_steps=_STEPS,
            batch=_BATCH,
            lr=0.01,
            output=root / "run",
            deadline=600.0,
        )
    return run, peak[0]


@contextmanager
def _watched(fleet: Fleet) -> Iterator[list[int]]:
    """Look at every agent until the end; the one number is the most that one of them held."""
    most, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(_PAUSE):
            most[0] = max(most[0], *(_proportional(pid) for pid in fleet.pids()))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def _proportional(pid: int) -> int:
    """Bytes of a process and its children, of what several map each its part; 0 once it has ended (Linux)."""
    process = Path("/proc") / str(pid)
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
        children = (process / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return 0
    own = sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return own + sum(_proportional(int(child)) for child in children)


def _row(setting: FrozenSetting, dtype: FrozenDType, found: _Found, idle: _Found) -> Row:
    above = found.peak - idle.peak
    return {
        "model": f"{setting.width} wide, {setting.depth} deep, {setting.vocabulary} words",
        "frozen matrices": dtype,
        "agents": setting.agents,
        "rounds": setting.rounds,
        "frozen numbers (M)": found.frozen / 1e6,
        "trained numbers (M)": found.trained / 1e6,
        "frozen file (MB)": found.bundle_frozen / 1e6,
        "memory of an agent (MB)": found.peak / 1e6,
        "above idle (MB)": above / 1e6,
        "step by --check (MB)": found.said / 1e6,
        "fetched in round 1 (MB)": found.fetched(slice(0, 1)) / 1e6,
        "fetched a round later (MB)": found.fetched(slice(1, None)) / 1e6,
        "seconds": found.seconds,
    }
