"""What the benchmarks that are grids of runs share on the command line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_fl.commands.progress import progress

if TYPE_CHECKING:
    from benchmarks.grid import Choice, Filling

__all__ = [
    "IMAGES",
    "RESULTS",
    "Budget",
    "Cache",
    "Clients",
    "Datasets",
    "EvaluateEvery",
    "LocalSteps",
    "Lr",
    "Methods",
    "Results",
    "Rounds",
    "Seeds",
    "chosen",
    "filling",
]

IMAGES = ("mnist", "fashion-mnist")
"""The data sets of most of FedBIAD's experiments."""
RESULTS = Path("runs.json.gz")
_SEEDS = (0, 1, 2)

Datasets = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset", help="mnist, fashion-mnist, wikitext-2, shakespeare, femnist, cifar-10 or digits; repeat."
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help="A method, or method+compressor; repeat [default: those of the table]."),
]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="A seed; repeat for several [default: 0, 1, 2].")]
Rounds = Annotated[int, typer.Option(help="Rounds.")]
EvaluateEvery = Annotated[
    int,
    typer.Option(min=1, help="Evaluate after every so many rounds, and the last: text takes long to evaluate."),
]
Clients = Annotated[
    int | None, typer.Option(min=1, help="Clients in all, a tenth of them picked a round [default: the paper's].")
]
LocalSteps = Annotated[int | None, typer.Option(min=1, help="Local SGD steps a round (V) [default: 60].")]
Lr = Annotated[float | None, typer.Option(help="SGD step size [default: the data set's].")]
Budget = Annotated[
    float | None,
    typer.Option(help="Minutes after which no run is begun (0: none is made); what is missing is named."),
]
Results = Annotated[
    Path, typer.Option(help="Keeps every run, so that the next benchmark only makes those that are not there.")
]
Cache = Annotated[Path | None, typer.Option(help="Keep the exported bundles here, for as long as they are right.")]


def chosen(datasets: Sequence[str], seeds: Sequence[int] | None, **settings: Any) -> "Choice":
    """What the command line chose of a grid, ``settings`` being those of :class:`benchmarks.grid.Choice`."""
    from benchmarks.grid import Choice

    return Choice(datasets=datasets, seeds=seeds or _SEEDS, **settings)


@contextmanager
def filling(doing: str, results: Path, cache: Path | None, minutes: float | None) -> "Iterator[Filling]":
    """Where runs are kept and how they are told of, for the benchmark called ``doing``."""
    from benchmarks.grid import Filling

    with TemporaryDirectory() as scratch, progress(doing) as report:
        yield Filling(results=results, cache=cache or Path(scratch), minutes=minutes, report=report)
