"""A client's answer to a task: train, compress, frame. What real agents and the simulator have in common."""

import os
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.compressors.base import Compressed, Compressor
from edge_fl.core.bundle import WHOLE_BATCHES, Bundle, Manifest
from edge_fl.core.errors import ConfigError, RunError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.secret_draws import KEY_BYTES
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import State
from edge_fl.data.registry import Samples
from edge_fl.methods.base import Job
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runtimes.base import Runtime
from edge_fl.training.clipping import clipped, noised
from edge_fl.training.local_run import LocalResult, LocalRun, LocalSettings, train
from edge_fl.training.personal import personal_tensors
from edge_fl.wire.context import Context, Vector
from edge_fl.wire.frame import Frame, Header, encode_kept
from edge_fl.wire.masks import decode_mask
from edge_fl.wire.messages import Clipping, Task
from edge_fl.wire.sparse import encode_sent
from edge_fl.wire.values import FLOAT32, WITHHELD, flatten, flattened, floats_of, unflatten

__all__ = ["Update", "Visit", "assigned_pattern", "make_update"]


@dataclass(frozen=True)
class Update:
    """An encoded update, the mean training loss, and the state to keep once it is accepted.

    ``withheld`` are the values that the frame leaves out, where the task wants that: the kept entries of every tensor
    as a frame of float32 would have them.
    """

    frame: bytes
    loss: float
    state: State
    withheld: bytes = b""


class Visit:
    """What one task has one client do; the steps of ``run`` are for a trainer to compute.

    Parameters
    ----------
    task
        What is asked.
    bundle
        What is trained.
    model
        The model that training starts from.
    state
        What the recipe kept after the last accepted round.
    secret
        Keys the noise of local privacy; nobody else may know it. None has one drawn for this visit.

    Raises
    ------
    ConfigError, FrameError
        When the task makes no sense here.
    """

    def __init__(
        self,
        task: Task,
        *,
        client: str,
        bundle: Bundle,
        model: Frame,
        samples: Samples,
        state: State,
        secret: bytes | None = None,
    ) -> None:
        manifest, layout = bundle.manifest, bundle.layout
        self._secret = os.urandom(KEY_BYTES) if secret is None else secret
        self._task, self._version, self._shared = task, model.header.version, model.shared
        self._recipe = open_recipe(task.method, task.parameters)
        if task.clipping is not msgspec.UNSET and self._recipe.values != FLOAT32:
            raise ConfigError(
                f"The task asks for a clipped update and for '{task.method}', which would change it after the clip."
            )
        if task.withheld and task.without_statistics is not msgspec.UNSET:
            raise ConfigError("The task withholds values for a sum of all of them, and leaves statistics out.")
        self._job = Job(
            layout=layout,
            client=client,
            tier=task.tier,
            round=task.round,
            seed=task.seed,
            weights=model.values,
            state=state,
            assigned=assigned_pattern(task, layout),
            statistic_widths=manifest.statistic_widths,
            label_mask=_label_mask(manifest, samples),
            samples=len(samples.y),
            batch=task.batch,
            output_noise=manifest.output_noise,
        )
        whole = manifest.batch_norm in WHOLE_BATCHES
        settings = LocalSettings(task.steps, task.batch, task.lr, whole)
        personal = personal_tensors(bundle, state)
        self.run = LocalRun(
            method=self._recipe.method,
            job=self._job,
            samples=samples,
            settings=settings,
            personal=personal,
            dropout=manifest.dropout,
        )

    def update(self) -> Update:
        """The update, once every step was made; raises RunError when a weight is no longer finite."""
        result, compressor = self.run.result(), self._recipe.compressor
        header = self._header(result)
        if self._task.clipping is not msgspec.UNSET:
            header, result = self._private(header, result, self._task.clipping)
        if self._task.withheld:
            return self._withheld(header, result)
        section: bytes | None = None
        memory: dict[str, Vector] = {}
        if self._recipe.sends_entries:
            selection = Selection.of(result.pattern, header.mode)
            section = encode_sent(flattened(selection.layout, result.delta), _sent(selection, result))
        elif compressor is not None:
            context = Context(Selection.of(result.pattern, header.mode), self._job.round, self._shared)
            section, memory = _compress(compressor, context, result, self._job)
        frame = encode_kept(header, result.pattern, result.delta, section)
        return Update(frame, result.loss, {**result.state, **memory})

    def _private(self, header: Header, result: LocalResult, clipping: Clipping) -> tuple[Header, LocalResult]:
        """A clipped update that tells neither samples nor loss, with noise where the task wants some."""
        selection = Selection.of(result.pattern, header.mode)
        delta, within = clipped(selection, result.delta, clipping.norm)
        if clipping.noise:
            # Of one update under two noises or clips the noise could be taken away: each has noise of its own.
            asked = f"{self._task.run}|{self._job.client}|{self._job.round}|{clipping.norm!r}|{clipping.noise!r}|"
            key = asked.encode() + self._secret
            delta = noised(selection, delta, clipping.noise, key)
        header = msgspec.structs.replace(
            header, samples=1, loss=0.0, unclipped=within if clipping.tell else msgspec.UNSET
        )
        return header, replace(result, delta=delta)

    def _withheld(self, header: Header, result: LocalResult) -> Update:
        """All but the values; raises ConfigError where not all of them could be summed as they are."""
        if header.values != FLOAT32:
            raise ConfigError(f"Secure aggregation sums whole rows, which '{self._task.method}' does not send.")
        frame = encode_kept(msgspec.structs.replace(header, values=WITHHELD), result.pattern, {})
        return Update(frame, result.loss, result.state, floats_of(result.pattern.layout, result.delta))

    def _header(self, result: LocalResult) -> Header:
        return Header(
            kind="update",
            run=self._task.run,
            round=self._task.round,
            version=self._version,
            layout=self._job.layout.digest,
            method=self._task.method,
            mode=self._recipe.method.mode,
            client=self._job.client,
            samples=result.samples,
            loss=result.loss,
            values=self._recipe.values,
            without_statistics=self._task.without_statistics,
        )


def make_update(
    task: Task,
    *,
    client: str,
    model: Frame,
    runtime: Runtime,
    samples: Samples,
    state: State,
    secret: bytes | None = None,
) -> Update:
    """Do what ``task`` asks of ``client`` in ``runtime``; parameters and errors are those of :class:`Visit`.

    Raises RuntimeMissingError or RunError, too, when it cannot be trained, or the loss is no longer finite.
    """
    visit = Visit(
        task,
        client=client,
        bundle=runtime.bundle,
        model=model,
        samples=samples,
        state=state,
        secret=secret,
    )
    train(runtime, visit.run)
    return visit.update()


def assigned_pattern(task: Task, layout: Layout) -> Pattern | None:
    """The pattern that ``task`` assigns, None where the device chooses; FrameError (``mask``) on a bad one."""
    return decode_mask(task.mask, task.pattern, layout) if task.pattern else None


def _label_mask(manifest: Manifest, samples: Samples) -> NDArray[np.float32] | None:
    if not manifest.masks_labels:
        return None
    return np.isin(np.arange(manifest.classes), samples.y).astype(np.float32)


def _sent(selection: Selection, result: LocalResult) -> NDArray[np.bool_]:
    """Which of the parameters' kept entries are to be sent: ``[n]``."""
    parts = []
    for tensor in selection.layout.parameters:
        sent = result.sent.get(tensor.name)
        kept = np.True_ if sent is None else sent[selection.index(tensor)]
        parts.append(np.broadcast_to(kept, selection.shape(tensor)).reshape(-1))
    return np.concatenate(parts)


def _compress(
    compressor: Compressor, context: Context, result: LocalResult, job: Job
) -> tuple[bytes, dict[str, Vector]]:
    """Compress the kept differences; what is remembered of entries not kept stays as it was."""
    full = {f"{compressor.name}.{name}": _remembered(job, compressor, name) for name in compressor.memory}
    views = {key: _by_tensor(vector, job.layout) for key, vector in full.items()}
    selection = context.selection
    kept = {name: flatten(selection, views[f"{compressor.name}.{name}"]) for name in compressor.memory}
    stream = Stream.of(seed=job.seed, purpose=compressor.name, client=job.client, round=job.round)
    done = compressor.compress(flattened(selection.layout, result.delta), kept, context, stream)
    _check_compressed(done, compressor, context.count)
    for name, vector in done.memory.items():
        for tensor, entries in unflatten(vector, selection).items():
            views[f"{compressor.name}.{name}"][tensor][selection.index(job.layout.tensor(tensor))] = entries
    return done.section, full


def _check_compressed(done: object, compressor: Compressor, count: int) -> None:
    """Raise RunError where ``compress`` gave anything but bytes, and ``count`` numbers for each memory."""
    gives = f"compress() of '{compressor.name}' gives"
    if not isinstance(done, Compressed):
        raise RunError(f"{gives} {type(done).__name__}, and not a Compressed.")
    if done.memory.keys() != {*compressor.memory}:
        raise RunError(f"{gives} the memory {sorted(done.memory)}, and keeps {sorted(compressor.memory)}.")
    for name, vector in done.memory.items():
        if np.shape(vector) != (count,):
            raise RunError(f"{gives} '{name}' the shape {np.shape(vector)}, and {count} entries are kept.")


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
