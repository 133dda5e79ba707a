"""BatchNorm statistics collected once training is over: HeteroFL's static BatchNorm (Diao et al., 2021).

Each client makes one pass over its data with the final model, at the width of its tier, and averages what its batches
show: the plain mean over them of the batch's mean and of its unbiased variance, which is what torch's BatchNorm keeps
with ``momentum=None``. Nothing is trained. A train step moves a statistic s by its momentum m towards the batch's own,
``s (1 - m) + b m``, and weights by the step size; with s = 0 and a step size of 0 it gives ``b m``, and b is that over
the m that the manifest has.
"""

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import LABEL_MASK, Manifest
from edge_fl.core.dropout import masks_of_nothing_dropped
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection, Weights
from edge_fl.core.server_half import State
from edge_fl.core.width_statistics import row_at
from edge_fl.data.batcher import batches
from edge_fl.data.registry import Samples
from edge_fl.runtimes.base import Runtime
from edge_fl.training.personal import personal_tensors
from edge_fl.wire.frame import Frame, Header, encode_frame
from edge_fl.wire.messages import CollectStatistics
from edge_fl.wire.sparse import SPARSE, encode_sent

__all__ = ["collectable", "make_statistics", "own_row"]


def collectable(manifest: Manifest) -> tuple[Tensor, ...]:
    """The statistics that can be collected: those that steps bring up to date, by a momentum that is known."""
    return tuple(tensor for tensor in manifest.layout.tensors if tensor.name in manifest.momenta)


def own_row(manifest: Manifest, tensor: Tensor, width: int) -> int | slice:
    """Where a statistic has those of ``width`` (thousandths): its row, or all of it where it has no rows."""
    return row_at(manifest.statistic_widths, width) if tensor.per_width else slice(None)


def make_statistics(
    task: CollectStatistics, *, client: str, model: Frame, runtime: Runtime, samples: Samples, state: State
) -> bytes:
    """The frame that answers ``task``: what one pass of ``client`` over ``samples`` shows of the batches.

    ``state`` is what the client remembers, its personal tensors among it.

    Raises
    ------
    ConfigError
        When the bundle's steps bring no statistics up to date.
    DataError
        When there are no samples.
    RuntimeMissingError
        When the bundle holds no program of that width and batch.
    """
    layout, pattern = runtime.bundle.layout, Pattern.prefix(runtime.bundle.layout, task.width)
    count = max(len(samples.y) // task.batch, 1)
    weights = {**model.values, **personal_tensors(runtime.bundle, state)}
    found = _mean(runtime, weights, samples, task, client=client, pattern=pattern, count=count)
    header = Header(
        kind="statistics",
        run=task.run,
        round=task.round,
        version=model.header.version,
        layout=layout.digest,
        method=model.header.method,
        client=client,
        samples=min(count * task.batch, len(samples.y)),
        values=SPARSE,
    )
    nothing = np.zeros(_kept_parameters(layout, pattern), dtype=np.float32)
    return encode_frame(header, pattern, found, encode_sent(nothing, nothing > 0))


def _mean(
    runtime: Runtime,
    weights: Weights,
    samples: Samples,
    task: CollectStatistics,
    *,
    client: str,
    pattern: Pattern,
    count: int,
) -> dict[str, NDArray[np.float32]]:
    """Full statistics by name, zero but for what ``count`` batches show under ``pattern``."""
    manifest, selection = runtime.bundle.manifest, Selection.of_trained(pattern)
    wanted = collectable(manifest)
    if not wanted:
        raise ConfigError(
            f"The steps of '{manifest.name}' bring no BatchNorm statistics up to date: export it anew, with "
            "--batch-norm tracked or per-width."
        )
    program = runtime.train_step(pattern, task.batch)
    kept = selection.gather(weights)
    kept |= {tensor.name: np.zeros_like(kept[tensor.name]) for tensor in wanted}
    slots = program.fresh_slots(kept)
    extra = {LABEL_MASK: np.ones(manifest.classes, dtype=np.float32)}
    extra |= masks_of_nothing_dropped(manifest.dropout, pattern, batch=task.batch)
    stream = Stream.of(seed=task.seed, purpose="statistics", client=client, round=task.round)
    sums = {tensor.name: np.zeros(kept[tensor.name].shape) for tensor in wanted}
    try:
        for batch in batches(samples, steps=count, size=task.batch, stream=stream, whole=True):
            done = program(kept, batch, lr=0.0, slots=slots, scale=task.factor, width=task.width, extra=extra)
            sums = {name: total + done.tensors[name] for name, total in sums.items()}
    finally:
        runtime.settle()
    found = {}
    for tensor in manifest.layout.tensors:
        found[tensor.name] = np.zeros(tensor.shape, dtype=np.float32)
        if tensor.name in sums:
            mean = sums[tensor.name] / (count * float(np.float32(manifest.momenta[tensor.name])))
            found[tensor.name][selection.index(tensor)] = mean
    return found


def _kept_parameters(layout: Layout, pattern: Pattern) -> int:
    selection = Selection.of(pattern, "units")
    return sum(int(np.prod(selection.shape(tensor), dtype=np.int64)) for tensor in layout.parameters)
