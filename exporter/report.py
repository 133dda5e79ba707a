"""What `edge-fl export --check` tells of a model before anything is written."""

from collections.abc import Iterable
from dataclasses import dataclass

from edge_fl.core.bundle import BatchNormPolicy, Cost
from edge_fl.core.dropout import Dropout
from edge_fl.core.pattern import prefix_counts
from exporter.derive import Derivation
from exporter.frozen import BATCH_NORMS
from exporter.kernels import MissingKernel, find_missing_kernels
from exporter.lower import Report
from exporter.source import Source
from exporter.step_memory import step_memory
from exporter.steps import STEPS
from exporter.target import Target

__all__ = ["BatchNorm", "Findings", "examine"]

_POLICIES: dict[BatchNormPolicy, str] = {
    "tracked": "normalises by the batch; the running statistics travel with every update",
    "per-width": "normalises by the batch; running statistics of each width, which travel with every update (FjORD's)",
    "static": "normalises by the batch; the running statistics stay as they were exported",
    "frozen": "normalises by the running statistics, which stay as they were exported",
}


@dataclass(frozen=True)
class BatchNorm:
    """The policy in force for ``layers``, and what may be chosen in its place, each with what it does."""

    policy: BatchNormPolicy
    meaning: str
    layers: tuple[str, ...]
    alternatives: dict[str, str]


@dataclass(frozen=True)
class Findings:
    """What an export would give.

    Parameters
    ----------
    derivation
        The layout, and what stays dense and why.
    batch_norm
        None where the model has no such layer.
    costs
        At full width and at each of the target's, widest first.
    missing
        For each runtime the operations that it cannot train; None where nothing is known of its kernels.
    memory
        Bytes of a train step in onnxruntime by width (thousandths); empty where ``onnx`` is not among the runtimes.
    dropout
        Where the model itself drops.
    """

    derivation: Derivation
    batch_norm: BatchNorm | None
    costs: tuple[Cost, ...]
    missing: dict[str, tuple[MissingKernel, ...] | None]
    memory: dict[int, int]
    dropout: tuple[Dropout, ...] = ()


def examine(
    source: Source, target: Target, derivation: Derivation, costs: tuple[Cost, ...], report: Report
) -> Findings:
    """Find out what an export would give, by a trace for each runtime, one for each width, and no compilation.

    Raises UnsupportedModelError when a train step cannot be traced.
    """
    missing: dict[str, tuple[MissingKernel, ...] | None] = {}
    for runtime in target.runtimes:
        report(f"{runtime}: looking for kernels")
        missing[runtime] = _missing(runtime, source, target)
    widths = [cost.width for cost in costs] if "onnx" in target.runtimes else []
    return Findings(
        derivation,
        _batch_norm(source, target),
        costs,
        missing,
        _memory(source, target, widths, report),
        source.dropped,
    )


def _memory(source: Source, target: Target, widths: Iterable[int], report: Report) -> dict[int, int]:
    """Of the largest of the target's steps."""
    found = {}
    for width in widths:
        report(f"onnx: memory at width {width / 1000:g}")
        counts = prefix_counts(source.layout, width)
        found[width] = max(step_memory(STEPS.find(v)(source), counts, target.batch) for v in target.variants)
    return found


def _missing(runtime: str, source: Source, target: Target) -> tuple[MissingKernel, ...] | None:
    found: dict[MissingKernel, None] = {}
    for variant in target.variants:
        kernels = find_missing_kernels(runtime, STEPS.find(variant)(source), batch=target.batch)
        if kernels is None:
            return None
        found.update(dict.fromkeys(kernels))
    return tuple(found)


def _batch_norm(source: Source, target: Target) -> BatchNorm | None:
    layers = [name for name, module in source.original.named_modules() if isinstance(module, BATCH_NORMS)]
    if not layers:
        return None
    others = {f"--batch-norm {name}": meaning for name, meaning in _POLICIES.items() if name != target.batch_norm}
    others["GroupNorm in the model"] = "has no statistics and depends on no other sample; whole groups are dropped"
    return BatchNorm(target.batch_norm, _POLICIES[target.batch_norm], tuple(layers), others)
