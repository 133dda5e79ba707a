"""What a train step of a transformer costs: all of it, half of its heads and features, adapters, the head alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from benchmarks.products import ALONE, Shape, products
from benchmarks.transformer import VisionTransformer
from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from edge_fl.measure.timing import turns
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.wire.sizes import Size, size_at
from exporter.export import Target, check_model, export_bundle
from exporter.fine_tuning import train_only
from exporter.measure.eager import eager_step, sized
from exporter.measure.memory import Work, peak_memory

__all__ = ["FineTuningSetting", "bench_fine_tuning_step"]

_BATCH, _CLASSES, _LR = 20, 10, 1e-3
_FULL, _HALF = 1000, 500
_EAGER = "torch eager"
_BARS = Bars("Time of a step, as a share of one that trains all", ("trained", "runtime"), ("time / all",))


@dataclass(frozen=True)
class _Kind:
    """What of the model is trained: ``train`` as ``--train`` has it, at a width in thousandths."""

    name: str
    train: tuple[str, ...] = ()
    width: int = _FULL
    goal: float | None = None  # of its time over that of all
    cached: bool = False  # features, with --cache-features


_KINDS = (
    _Kind("all"),
    _Kind("all, half of heads and features", width=_HALF, goal=0.6),
    _Kind("LoRA, r = 8, on q and v", ("lora:q_proj,v_proj:r=8",), goal=0.8),
    _Kind("head", ("head.*",), goal=0.35),
    _Kind("head, of kept features", ("head.*",), cached=True),
)
_EAGER_GOALS: Mapping[str, float] = {"onnx": 0.65, "executorch": 0.9}


@dataclass(frozen=True)
class FineTuningSetting:
    """A vision transformer's ``width``, ``heads`` and ``depth``, ``runtimes`` by name, ``repeats`` turns each."""

    runtimes: tuple[str, ...]
    width: int
    heads: int
    depth: int
    threads: int
    repeats: int

    @property
    def command(self) -> str:
        """The command line that gives the same table."""
        chosen = [f"--runtime {name}" for name in self.runtimes]
        return (
            f"edge-fl bench fine-tuning-step {' '.join(chosen)} --width {self.width} --heads {self.heads} "
            f"--depth {self.depth} --threads {self.threads} --repeats {self.repeats}"
        )

    def build(self) -> nn.Module:
        """The model, with the same weights every time."""
        torch.manual_seed(0)
        return VisionTransformer(width=self.width, heads=self.heads, depth=self.depth, classes=_CLASSES)


def bench_fine_tuning_step(setting: FineTuningSetting, report: Callable[[str], None]) -> Result:
    """Time plain SGD steps; raises as :func:`exporter.export.export_bundle` where a runtime cannot take the model."""
    torch.set_num_threads(setting.threads)
    with TemporaryDirectory() as scratch:
        bundles = {
            (kind.train, kind.cached, runtime): _exported(setting, kind, runtime, Path(scratch), report)
            for kind in _KINDS
            for runtime in setting.runtimes
            if kind.width == _FULL
        }
        report("timing")
        times = turns(dict(_steps(setting, bundles)), repeats=setting.repeats)
        rows = list(_rows(setting, bundles, times, report))
    return Result(
        title="A step of fine-tuning",
        command=setting.command,
        about=f"One plain SGD step of a vision transformer of width {setting.width}, {setting.heads} heads and "
        f"{setting.depth} layers, on {_BATCH} images of 64 x 64 pixels. Half means half of each layer's heads and of "
        "its dense features, executed compactly. Torch eager is the same nn.Module with autograd and "
        "torch.optim.SGD, with heads and features removed. A ratio is the median over the turns of one run, in each "
        "of which every alternative takes one step. Products alone are the matrix products of all layers, but for "
        "the patches' and the head's, in torch and in each runtime, on tensors made before: a floor of the time "
        "there. Of kept features (`--cache-features`), what lies below the head was computed once a sample, and no "
        "step pays for it. Upload is the frame of an update, which has what is trained alone. Memory is the peak of "
        "three steps in a process of its own, beside the loaded libraries; `--check` says it before an export.",
        rows=rows,
        bars=_BARS,
    )


def _floor(runtime: str | None) -> str:
    return f"products alone, {runtime or 'torch'}"


def _floors(setting: FineTuningSetting) -> list[str | None]:
    return [None, *(runtime for runtime in setting.runtimes if runtime in ALONE)]


_Bundles = Mapping[tuple[tuple[str, ...], bool, str], Bundle]


def _exported(
    setting: FineTuningSetting, kind: _Kind, runtime: str, scratch: Path, report: Callable[[str], None]
) -> Bundle:
    model = train_only(setting.build(), kind.train)
    folder = scratch / f"{runtime}-{kind.name}"
    return export_bundle(model, _target(kind, runtime), folder, report=lambda text: report(f"{kind.name}, {text}"))


def _target(kind: _Kind, runtime: str) -> Target:
    return Target(
        "fine-tuning",
        "made-up",
        Input((3, 64, 64), "float32"),
        _CLASSES,
        (runtime,),
        widths=(_FULL, _HALF),
        batch=_BATCH,
        cache_features=kind.cached,
    )


def _steps(
    setting: FineTuningSetting, bundles: _Bundles
) -> Iterator[tuple[tuple[str, str], Callable[[], object]]]:
    for runtime in _floors(setting):
        yield (_KINDS[0].name, _floor(runtime)), products(_shapes(setting), runtime, threads=setting.threads)
    for kind in _KINDS:
        model = train_only(setting.build(), kind.train)
        kept = _kept(bundles[kind.train, kind.cached, setting.runtimes[0]], kind.width)
        if not kind.cached:
            yield (kind.name, _EAGER), eager_step(sized(model, kept), _batch(), lr=_LR)
        for runtime in setting.runtimes:
            bundle = bundles[kind.train, kind.cached, runtime]
            yield (kind.name, runtime), _step(bundle, runtime, kind.width, setting.threads)


def _shapes(setting: FineTuningSetting) -> list[Shape]:
    """The products of the forward pass of a step that trains all, but for the patches' and the head's."""
    tokens, width, size = 64, setting.width, setting.width // setting.heads
    dense = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
    attention = [(size, tokens), (tokens, size)]
    of_a_layer = [
        *((1, _BATCH * tokens, inner, columns) for inner, columns in dense),
        *((_BATCH * setting.heads, tokens, inner, columns) for inner, columns in attention),
    ]
    return of_a_layer * setting.depth


def _step(bundle: Bundle, runtime: str, width: int, threads: int) -> Callable[[], object]:
    pattern, kept = Pattern.prefix(bundle.layout, width), _kept(bundle, width)
    opened = open_runtime(runtime, bundle, threads=threads)
    program, batch = opened.train_step(pattern, _BATCH), _with_features(opened)
    return lambda: program(kept, batch, lr=_LR)


def _kept(bundle: Bundle, width: int) -> Weights:
    return Selection.of(Pattern.prefix(bundle.layout, width), "units").gather(bundle.weights())


def _batch() -> Batch:
    rng = np.random.default_rng(0)
    x = rng.random((_BATCH, 3, 64, 64), dtype=np.float32)
    return Batch(x, rng.integers(0, _CLASSES, _BATCH), np.ones(_BATCH, dtype=np.float32))


def _with_features(runtime: Runtime) -> Batch:
    batch = _batch()
    return replace(batch, x=runtime.features(batch.x))


def _rows(
    setting: FineTuningSetting,
    bundles: _Bundles,
    times: Mapping[tuple[str, str], Sequence[float]],
    report: Callable[[str], None],
) -> Iterator[Row]:
    whole = size_at(bundles[(), False, setting.runtimes[0]].layout, _FULL)
    for kind in _KINDS:
        sent = size_at(bundles[kind.train, kind.cached, setting.runtimes[0]].layout, kind.width)
        for runtime in (*map(_floor, _floors(setting)), _EAGER, *setting.runtimes):
            if (kind.name, runtime) not in times:
                continue
            taken = times[kind.name, runtime]
            share = _ratio(taken, times[_KINDS[0].name, runtime])
            eager = _ratio(taken, times[kind.name, _EAGER]) if (kind.name, _EAGER) in times else None
            report(f"{kind.name}, {runtime}: memory")
            yield {
                "trained": kind.name,
                "runtime": runtime,
                "step (ms)": 1e3 * median(taken),
                "time / all": share,
                "time / eager": "" if eager is None else eager,
                **(_upload(sent, whole) if runtime in setting.runtimes else dict.fromkeys(_UPLOAD, "")),
                **_memory(setting, kind, runtime, bundles.get((kind.train, kind.cached, runtime))),
                "goals": _goals(kind, runtime, share, eager),
            }


def _memory(setting: FineTuningSetting, kind: _Kind, runtime: str, bundle: Bundle | None) -> Row:
    """Peak of a step, and of onnxruntime's what ``--check`` says of it."""
    if bundle is None:
        return {"memory (MB)": "", "memory / check": ""}
    batch = _with_features(open_runtime(runtime, bundle, threads=setting.threads))
    taken = peak_memory(Work(bundle.root, "", runtime, kind.width, batch, setting.threads))
    if runtime != "onnx":
        return {"memory (MB)": taken / 1e6, "memory / check": ""}
    said = check_model(train_only(setting.build(), kind.train), _target(kind, runtime)).memory[kind.width]
    return {"memory (MB)": taken / 1e6, "memory / check": taken / said}


_UPLOAD = ("upload, units / all", "upload, rows / all")


def _upload(sent: Size, whole: Size) -> Row:
    return dict(zip(_UPLOAD, (sent.units / whole.units, sent.rows / whole.rows), strict=True))


def _goals(kind: _Kind, runtime: str, share: float, eager: float | None) -> str:
    if runtime == _EAGER:
        return ""
    goals = [("time / all", kind.goal, share)] if kind.goal is not None else []
    if kind is _KINDS[0] and runtime in _EAGER_GOALS and eager is not None:
        goals.append(("time / eager", _EAGER_GOALS[runtime], eager))
    return "; ".join(f"{name} ≤ {goal:g}: {'yes' if seen <= goal else 'no'}" for name, goal, seen in goals)


def _ratio(times: Sequence[float], to: Sequence[float]) -> float:
    return median(a / b for a, b in zip(times, to, strict=True))
