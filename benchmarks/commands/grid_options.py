"""The commands of the benchmarks that are grids of runs: one table of options, and what each command changes of it."""

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.grid import Choice, Filling
from edge_fl.commands.measure_options import Json, Output, show
from edge_fl.commands.progress import progress
from edge_fl.measure.table import Result

__all__ = ["IMAGES", "Clients", "Datasets", "LocalSteps", "Rounds", "grid"]

IMAGES = ("mnist", "fashion-mnist")
"""The data sets of most of FedBIAD's experiments."""

_SEEDS = (0, 1, 2)
Datasets = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset", help="mnist, fashion-mnist, wikitext-2, shakespeare, femnist, cifar-10 or digits; repeat."
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="A method, method+compressor or preset, with parameters: 'fedbiad+dgc dgc.ratio=0.0019'; repeat "
        "[default: those of the table].",
    ),
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
Partition = Annotated[str, typer.Option(help="labels=2, dirichlet=0.5, iid ... [default: the paper's].")]
Model = Annotated[
    str, typer.Option(help="A model of the zoo for the data set [default: that of the other tables].")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples a batch [default: 20].")]
WeightDecay = Annotated[float, typer.Option(min=0, help="Weight decay of the clients' SGD.")]
LocalSteps = Annotated[int | None, typer.Option(min=1, help="Local SGD steps a round (V) [default: 60].")]
Lr = Annotated[float | None, typer.Option(help="SGD step size [default: the data set's].")]
Device = Annotated[str, typer.Option(help="Where clients train: cpu or cuda.")]
Budget = Annotated[
    float | None,
    typer.Option(help="Minutes after which no run is begun (0: none is made); what is missing is named."),
]
Results = Annotated[
    Path, typer.Option(help="Keeps every run, so that the next benchmark only makes those that are not there.")
]
Cache = Annotated[Path | None, typer.Option(help="Keep the exported bundles here, for as long as they are right.")]

_CHOICE: dict[str, tuple[Any, object]] = {
    "dataset": (Datasets, None),
    "method": (Methods, None),
    "seed": (Seeds, None),
    "rounds": (Rounds, 60),
    "clients": (Clients, None),
    "partition": (Partition, ""),
    "model": (Model, ""),
    "local_steps": (LocalSteps, None),
    "batch": (BatchSize, None),
    "lr": (Lr, None),
    "weight_decay": (WeightDecay, 0.0),
    "evaluate_every": (EvaluateEvery, 1),
    "device": (Device, "cpu"),
}
"""Options and defaults of :class:`benchmarks.grid.Choice`."""
_FILLING: dict[str, tuple[Any, object]] = {
    "time_budget": (Budget, None),
    "results": (Results, Path("runs.json.gz")),
    "cache": (Cache, None),
    "output": (Output, None),
    "json": (Json, False),
}


def grid(
    bench: str, datasets: Sequence[str], *, without: Sequence[str] = (), **changed: tuple[Any, object]
) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Make a command of a function of a choice, a filling and, by keyword, options that it alone has.

    Parameters
    ----------
    bench
        The command's name below ``edge-fl bench``.
    datasets
        Those of a command line that names none.
    without
        Options of the table that the command does not have.
    changed
        Options of the table with another help or default: an annotation and a default.
    """

    def command_of(function: Callable[..., Result]) -> Callable[..., None]:
        own = {
            name: (parameter.annotation, parameter.default)
            for name, parameter in signature(function, eval_str=True).parameters.items()
            if parameter.kind is Parameter.KEYWORD_ONLY
        }
        choice = {name: option for name, option in (_CHOICE | changed).items() if name not in {*own, *without}}
        options = choice | own | _FILLING

        def command(**given: Any) -> None:
            chosen = {name: given[name] for name in choice.keys() - {"dataset", "seed", "method"}}
            asked = Choice(
                given["dataset"] or datasets, given["seed"] or _SEEDS, methods=given.get("method"), **chosen
            )
            with TemporaryDirectory() as scratch, progress(f"bench {bench}") as report:
                how = Filling(given["results"], given["cache"] or Path(scratch), given["time_budget"], report)
                result = function(asked, how, **{name: given[name] for name in own})
            show(result, given["output"], as_json=given["json"])

        command.__doc__, command.__name__, command.__module__ = function.__doc__, function.__name__, __name__
        vars(command)["__signature__"] = Signature(
            [
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in options.items()
            ]
        )
        return command

    return command_of
