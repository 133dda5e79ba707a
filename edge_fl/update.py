"""A client's answer to a task: train, compress, frame. What real agents and the simulator have in common."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_fl.compressors.base import Compressor, Vector
from edge_fl.data.registry import Samples
from edge_fl.layout import Layout
from edge_fl.methods.base import Job, State
from edge_fl.pattern import Pattern
from edge_fl.randomness import Stream
from edge_fl.recipe import open_recipe
from edge_fl.runtimes.base import Runtime
from edge_fl.selection import Selection
from edge_fl.training import LocalResult, LocalSettings, train_locally
from edge_fl.wire.frame import Frame, Header, encode_frame
from edge_fl.wire.masks import decode_mask
from edge_fl.wire.messages import Task
from edge_fl.wire.values import FLOAT32, flatten, unflatten

__all__ = ["Update", "assigned_pattern", "make_update"]


@dataclass(frozen=True)
class Update:
    """An encoded update, the mean training loss, and the state to keep once it is accepted."""

    frame: bytes
    loss: float
    state: State


def make_update(
    task: Task, *, client: str, model: Frame, runtime: Runtime, samples: Samples, state: State
) -> Update:
    """Do what ``task`` asks of ``client``.

    Parameters
    ----------
    model
        The model that training starts from.
    state
        What the recipe kept after the last accepted round.

    Raises
    ------
    ConfigError, FrameError
        When the task makes no sense here.
    RuntimeMissingError, RunError
        When it cannot be trained, or the loss is no longer finite.
    """
    layout = runtime.bundle.layout
    recipe = open_recipe(task.method, task.parameters)
    job = Job(layout, client, task.round, task.seed, model.values, state, assigned_pattern(task, layout))
    settings = LocalSettings(task.steps, task.batch, task.lr)
    result = train_locally(runtime=runtime, method=recipe.method, job=job, samples=samples, settings=settings)
    header = Header(
        kind="update",
        run=task.run,
        round=task.round,
        version=model.header.version,
        layout=layout.digest,
        method=task.method,
        mode=recipe.method.mode,
        client=client,
        samples=result.samples,
        loss=result.loss,
        values=FLOAT32 if recipe.compressor is None else recipe.compressor.name,
    )
    if recipe.compressor is None:
        return Update(encode_frame(header, result.pattern, result.delta), result.loss, result.state)
    selection = Selection.of(result.pattern, recipe.method.mode)
    compressed, memory = _compress(recipe.compressor, selection, result, job)
    frame = encode_frame(header, result.pattern, result.delta, compressed)
    return Update(frame, result.loss, {**result.state, **memory})


def assigned_pattern(task: Task, layout: Layout) -> Pattern | None:
    """The pattern that ``task`` assigns, None where the device chooses; FrameError (``mask``) on a bad one."""
    return decode_mask(task.mask, task.pattern, layout) if task.pattern else None


def _compress(
    compressor: Compressor, selection: Selection, result: LocalResult, job: Job
) -> tuple[bytes, dict[str, Vector]]:
    """Compress the kept differences; what is remembered of entries not kept stays as it was."""
    full = {f"{compressor.name}.{name}": _remembered(job, compressor, name) for name in compressor.memory}
    views = {key: _by_tensor(vector, job.layout) for key, vector in full.items()}
    kept = {name: flatten(selection, views[f"{compressor.name}.{name}"]) for name in compressor.memory}
    stream = Stream.of(seed=job.seed, purpose=compressor.name, client=job.client, round=job.round)
    done = compressor.compress(flatten(selection, result.delta), kept, round=job.round, stream=stream)
    for name, vector in done.memory.items():
        for tensor, entries in unflatten(vector, selection).items():
            views[f"{compressor.name}.{name}"][tensor][selection.index(job.layout.tensor(tensor))] = entries
    return done.section, full


def _remembered(job: Job, compressor: Compressor, name: str) -> Vector:
    size = sum(tensor.size for tensor in job.layout.parameters)
    held = job.state.get(f"{compressor.name}.{name}")
    return np.zeros(size, dtype=np.float32) if held is None else np.array(held, dtype=np.float32)


def _by_tensor(vector: Vector, layout: Layout) -> dict[str, NDArray[np.float32]]:
    views, start = {}, 0
    for tensor in layout.parameters:
        views[tensor.name] = vector[start : start + tensor.size].reshape(tensor.shape)
        start += tensor.size
    return views
