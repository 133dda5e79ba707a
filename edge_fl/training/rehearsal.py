"""How long a step of a task takes on this machine, found before any task is set."""

import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Runtime
from edge_fl.training.local_run import train
from edge_fl.training.update import Visit
from edge_fl.wire.frame import Frame, Header
from edge_fl.wire.messages import Task

__all__ = ["rehearse"]

_SECONDS = 0.5  # of steps that are timed, about
_FEWEST, _MOST = 3, 50  # steps
_PATIENCE = 5.0  # seconds of the fewest steps that are enough to go by
_SPREAD, _LR = 0.05, 1e-6  # of weights, and a step size, that keep every number finite


def rehearse(task: Task, *, client: str, runtime: Runtime, samples: Samples) -> float:
    """Seconds that a step of ``task`` takes in ``runtime``, from any weights, with all that a step needs around it.

    Raises
    ------
    EdgeFLError
        As :func:`edge_fl.training.update.make_update`, where the task cannot be done.
    """
    model = _model(task, runtime.bundle.layout)

    def seconds(steps: int) -> float:
        timed = msgspec.structs.replace(task, steps=steps, lr=_LR)
        visit = Visit(timed, client=client, bundle=runtime.bundle, model=model, samples=samples, state={})
        started = time.perf_counter()
        train(runtime, visit.run)
        return (time.perf_counter() - started) / steps

    first = seconds(_FEWEST)  # programs are loaded on the way
    if _FEWEST * first > _PATIENCE:
        return first
    first = min(first, seconds(_FEWEST))
    return seconds(min(max(_FEWEST, round(_SECONDS / first)), _MOST))


def _model(task: Task, layout: Layout) -> Frame:
    rng = np.random.default_rng(0)
    values = {tensor.name: _values(tensor, rng) for tensor in layout.tensors}
    header = Header(
        kind="model", run=task.run, round=task.round, version=0, layout=layout.digest, method=task.method
    )
    pattern = Pattern.full(layout)
    return Frame(header, pattern, Selection.of(pattern, "rows"), values)


def _values(tensor: Tensor, rng: np.random.Generator) -> NDArray[np.float32]:
    if tensor.role == "statistic":
        return np.ones(tensor.shape, dtype=np.float32)
    return rng.normal(scale=_SPREAD, size=tensor.shape).astype(np.float32)
