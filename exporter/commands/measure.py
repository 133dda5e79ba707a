"""`edge-fl bench step` and `process`: what a training step costs here, and a task in a process of its own."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Models, Output, Runtimes, show
from edge_fl.commands.progress import progress

__all__ = ["process", "step"]


def step(
    *,
    model: Models = None,
    runtime: Runtimes = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 50,
    cache: Annotated[
        Path | None, typer.Option(help="Keep the exported bundles here, for as long as the exporter is the same.")
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """One training step of each model in each runtime, full and half width: ratios to torch eager, memory, sizes.

    Example: edge-fl bench step --model fashion-mnist-mlp --runtime onnx -o docs/benchmarks/step.md
    """
    from exporter.measure.cases import case_names
    from exporter.measure.exported import chosen_runtimes
    from exporter.measure.step import StepSetting, bench_step

    with TemporaryDirectory() as scratch, progress("bench step") as report:
        setting = StepSetting(
            models=tuple(model or case_names()),
            runtimes=chosen_runtimes(runtime or ()),
            threads=threads,
            repeats=repeats,
            cache=cache or Path(scratch),
        )
        result = bench_step(setting, report)
    show(result, output, as_json=json)


def process(
    *,
    model: Models = None,
    runtime: Runtimes = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns each alternative takes.")] = 100,
    cache: Annotated[
        Path | None, typer.Option(help="Keep the exported bundles here, for as long as the exporter is the same.")
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Whole tasks in the confined process that a device gives a bundle's programs, against tasks in this process.

    Example: edge-fl bench process --model fashion-mnist-mlp -o docs/benchmarks/process.md
    """
    from exporter.measure.exported import chosen_runtimes
    from exporter.measure.process import MODELS, RUNTIMES, ProcessSetting, bench_process

    with TemporaryDirectory() as scratch, progress("bench process") as report:
        setting = ProcessSetting(
            models=tuple(model or MODELS),
            runtimes=chosen_runtimes(runtime or RUNTIMES),
            repeats=repeats,
            cache=cache or Path(scratch),
        )
        result = bench_process(setting, report)
    show(result, output, as_json=json)
