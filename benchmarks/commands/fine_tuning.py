"""`edge-fl bench fine-tuning`: accuracy of a tuned model against what tuning it costs a device."""

from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress

__all__ = ["fine_tuning"]


def fine_tuning(
    *,
    task: Annotated[
        list[str] | None, typer.Option(help="femnist or shakespeare; repeat for both [default: both].")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; repeat for several [default: 0, 1, 2].")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 20,
    clients: Annotated[int, typer.Option(min=1, help="Devices a round.")] = 8,
    results: Annotated[
        Path, typer.Option(help="Keeps every run, so that the next benchmark only makes those that are not there.")
    ] = Path("fine-tuning.json"),
    cache: Annotated[
        Path | None, typer.Option(help="Keep pretrained weights and bundles here, for as long as they are right.")
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Tune a pretrained model whole, by its head, or by adapters: accuracy against bytes and CPU time.

    Example: edge-fl bench fine-tuning --task femnist --seed 0 -o docs/benchmarks/fine-tuning.md
    """
    from benchmarks.fine_tuning import FineTuningChoice, Keeping, bench_fine_tuning
    from benchmarks.pretrained import TASKS

    choice = FineTuningChoice(tuple(task or TASKS), tuple(seed or (0, 1, 2)), rounds, clients)
    kept = TemporaryDirectory() if cache is None else nullcontext(cache)
    with progress("bench fine-tuning") as report, kept as folder:
        result = bench_fine_tuning(choice, Keeping(results, Path(folder), report))
    show(result, output, as_json=json)
