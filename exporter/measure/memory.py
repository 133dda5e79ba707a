"""What a training step takes of memory, in a fresh process that does nothing else (Linux)."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.dropout import masks_of_nothing_dropped
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.runtimes.base import open_runtime

__all__ = ["Work", "peak_memory", "resident"]

_STEPS = 3


@dataclass(frozen=True)
class Work:
    """A step to measure: of the program for ``runtime`` in the bundle at ``root``, or of torch eager (None).

    ``width`` is in thousandths; ``model`` is the name of the benchmark's case.
    """

    root: Path
    model: str
    runtime: str | None
    width: int
    batch: Batch
    threads: int


def peak_memory(work: Work) -> int:
    """Bytes of resident memory at the most while the weights are made, the program is loaded and three steps run.

    Counted from when the libraries are loaded, so without them.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_measured, work).result()


def _measured(work: Work) -> int:
    bundle = Bundle.load(work.root)
    begin = _eager(work) if work.runtime is None else _runtime(work, bundle, work.runtime)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew (proc(5))
    step = begin(_weights(bundle, work.width))
    for _ in range(_STEPS):
        step()
    return resident("VmHWM") - before


def _runtime(work: Work, bundle: Bundle, name: str) -> Callable[[Weights], Callable[[], object]]:
    opened = open_runtime(name, bundle, threads=work.threads)

    def begin(tensors: Weights) -> Callable[[], object]:
        pattern = _pattern(bundle, work.width)
        program = opened.train_step(pattern, len(work.batch.x))
        masks = masks_of_nothing_dropped(bundle.manifest.dropout, pattern, batch=len(work.batch.x))
        return lambda: program(tensors, work.batch, lr=1e-3, extra=masks)

    return begin


def _eager(work: Work) -> Callable[[Weights], Callable[[], object]]:
    import torch

    from exporter.measure.cases import find_case
    from exporter.measure.eager import eager_step, sized

    torch.set_num_threads(work.threads)
    with torch.device("meta"):
        model = find_case(work.model).build()
    _first_step()
    return lambda tensors: eager_step(sized(model, tensors), work.batch, lr=1e-3)


def _first_step() -> None:
    """Makes torch load what it only loads when it is used."""
    import torch

    from exporter.measure.eager import eager_step

    one = Batch(np.ones((1, 1), np.float32), np.zeros(1, np.int64), np.ones(1, np.float32))
    eager_step(torch.nn.Linear(1, 1), one, lr=0.0)()


def _weights(bundle: Bundle, width: int) -> Weights:
    """Small weights, made at their width: gathering them from full ones would count those."""
    selection, rng = Selection.of(_pattern(bundle, width), "units"), np.random.default_rng(0)
    tensors = {}
    for tensor in bundle.layout.tensors:
        tensors[tensor.name] = rng.random(selection.shape(tensor), dtype=np.float32)
        tensors[tensor.name] *= 0.01
    return tensors


def _pattern(bundle: Bundle, width: int) -> Pattern:
    """One that is drawn here, since a device draws its own."""
    return Pattern(bundle.layout, Pattern.seeded(bundle.layout, 1000 - width, key=1).mask)


def resident(what: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (the peak), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))
