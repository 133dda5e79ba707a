"""One training step in every runtime, at full and half width, against torch eager in the same run."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edge_fl.bench.models import random_weights
from edge_fl.bench.table import Result
from edge_fl.bench.timing import medians
from edge_fl.bundle import Bundle, Input
from edge_fl.pattern import Pattern
from edge_fl.runtimes.base import Batch, open_runtime
from edge_fl.selection import Selection

__all__ = ["bench_step"]

_BATCH = 20
_WIDTHS = {"full": 0, "half": 500}  # dropout, in thousandths


def bench_step(repeats: int, runtimes: tuple[str, ...]) -> Result:
    """Time a step of the Fashion-MNIST perceptron on one thread."""
    rng = np.random.default_rng(0)
    x = rng.random((_BATCH, 1, 28, 28), dtype=np.float32)
    batch = Batch(x, rng.integers(0, 10, _BATCH), np.ones(_BATCH, dtype=np.float32))
    with tempfile.TemporaryDirectory() as scratch:
        bundle = _export(Path(scratch), runtimes)
        steps: dict[str, Callable[[], object]] = {"torch eager full": _eager_step(256, batch)}
        steps["torch eager half"] = _eager_step(128, batch)
        for runtime in runtimes:
            for width, dropout in _WIDTHS.items():
                steps[f"{runtime} {width}"] = _runtime_step(bundle, runtime, dropout, batch)
        took = medians(steps, repeats=repeats)
    rows: list[dict[str, str | float]] = []
    for runtime in ("torch eager", *runtimes):
        full, half = took[f"{runtime} full"], took[f"{runtime} half"]
        rows.append(
            {
                "runtime": runtime,
                "full (ms)": 1e3 * full,
                "full / eager": full / took["torch eager full"],
                "half (ms)": 1e3 * half,
                "half / eager": half / took["torch eager full"],
                "half / full": half / full,
            }
        )
    return Result(
        title="Training step",
        command="edge-fl bench step",
        about="One SGD step of 784-256-256-10 on a batch of 20, one thread; half width is compact execution of "
        "half the units of each hidden layer. Torch eager is an nn.Module with autograd and torch.optim.SGD; "
        "ratios are to its full width, measured in turn; medians.",
        rows=rows,
    )


def _export(root: Path, runtimes: tuple[str, ...]) -> Bundle:
    import torch

    from exporter.export import Target, export_bundle
    from exporter.zoo.mlp import fashion_mnist

    torch.manual_seed(0)
    target = Target(
        "bench", "fashion-mnist", Input((1, 28, 28), "float32"), 10, runtimes, widths=(1000, 500), batch=_BATCH
    )
    return export_bundle(fashion_mnist(), target, root)


def _eager_step(hidden: int, batch: Batch) -> Callable[[], object]:
    import torch

    from exporter.zoo.mlp import mlp

    torch.set_num_threads(1)
    model = mlp(inputs=784, hidden=hidden, classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _runtime_step(bundle: Bundle, runtime: str, dropout: int, batch: Batch) -> Callable[[], object]:
    pattern = Pattern.seeded(bundle.layout, dropout, key=1)
    kept = Selection.of(pattern, "units").gather(random_weights(bundle.layout, 0))
    run = open_runtime(runtime, bundle, threads=1).train_step(pattern.counts, _BATCH)
    return lambda: run(kept, batch, lr=1e-3, scale=1.0)
