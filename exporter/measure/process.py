"""A whole task in a process of its own against the same task in this one, in the same run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.pattern import Pattern
from edge_fl.data.held_out import Split
from edge_fl.data.registry import Samples
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from edge_fl.measure.timing import turns
from edge_fl.runtimes.base import open_runtime
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.messages import Task
from edge_fl.worker.confinement import memory_share
from edge_fl.worker.process import WorkerProcess, WorkerSettings
from edge_fl.worker.work import LocalWork
from exporter.measure.cases import BATCH, Case, find_case
from exporter.measure.exported import exported

__all__ = ["MODELS", "RUNTIMES", "ProcessSetting", "bench_process"]

MODELS = ("fashion-mnist-mlp", "femnist-cnn")
RUNTIMES = ("onnx", "executorch")
_STEPS = (20, 60)
_SAMPLES = 600
_CLIENT, _RUN = "bench", "bench"
_BARS = Bars(
    "A task in a process of its own, as a share of one here", ("model", "runtime", "steps"), ("there / here",)
)


@dataclass(frozen=True)
class ProcessSetting:
    """What is timed: ``models`` in ``runtimes`` by name, ``repeats`` turns each, bundles from ``cache``."""

    models: tuple[str, ...]
    runtimes: tuple[str, ...]
    repeats: int
    cache: Path

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        chosen = [f"--model {name}" for name in self.models] + [f"--runtime {name}" for name in self.runtimes]
        return f"edge-fl bench process {' '.join(chosen)} --repeats {self.repeats}"


def bench_process(setting: ProcessSetting, report: Callable[[str], None]) -> Result:
    """Time whole tasks of FedAvg; raises as :func:`exporter.export.export_bundle` where a model cannot be exported."""
    rows: list[Row] = []
    for model in setting.models:
        case = find_case(model)
        report(f"{model}: exporting")
        bundle = exported(case, setting.runtimes, setting.cache, report)
        for runtime in setting.runtimes:
            report(f"{model}: tasks in {runtime}")
            rows += _rows(case, bundle, runtime, setting.repeats)
    return Result(
        title="A process of its own",
        command=setting.command,
        about="A task is a round of one client under FedAvg: the model's frame is decoded and checked, so many steps "
        f"on batches of {BATCH} are made, and the update is encoded. There, model and update also cross the process "
        "border; samples have crossed before. A ratio is the median over the turns of one run, in each of which both "
        "do the same task. Memory is what is resident of the process after its tasks, libraries included.",
        rows=rows,
        bars=_BARS,
    )


def _rows(case: Case, bundle: Bundle, runtime: str, repeats: int) -> Iterator[Row]:
    with TemporaryDirectory() as empty:
        settings = WorkerSettings(_CLIENT, runtime, Path(empty), memory_share(), seconds=600)
        there, here = WorkerProcess(bundle, settings), LocalWork(_CLIENT, open_runtime(runtime, bundle))
        samples = _samples(case)
        for work in (there, here):
            work.hold(Split(samples, samples))
        header = Header(kind="model", run=_RUN, round=1, version=0, layout="", method="fedavg")
        model = encode_frame(header, Pattern.full(bundle.layout), bundle.weights())
        for steps in _STEPS:
            task = _task(model, steps)
            alternatives = {
                "here": lambda task=task: here.train(task, model, {}),
                "there": lambda task=task: there.train(task, model, {}),
            }
            taken = turns(alternatives, repeats=repeats)
            yield {
                "model": case.name,
                "runtime": runtime,
                "steps": steps,
                "here (ms)": 1e3 * median(taken["here"]),
                "there / here": median(t / h for t, h in zip(taken["there"], taken["here"], strict=True)),
                "there - here (ms)": 1e3
                * median(t - h for t, h in zip(taken["there"], taken["here"], strict=True)),
                "memory (MB)": there.resident() / 1e6,
            }
        there.close()


def _task(model: bytes, steps: int) -> Task:
    return Task(
        run=_RUN,
        round=1,
        accepted=0,
        model=ref_of(model),
        method="fedavg",
        parameters={},
        steps=steps,
        batch=BATCH,
        lr=1e-3,
        seed=0,
        tier=0,
    )


def _samples(case: Case) -> Samples:
    batch = case.batch()
    indices = np.arange(_SAMPLES) % BATCH
    return Samples(batch.x[indices], batch.y[indices])
