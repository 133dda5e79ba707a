"""FjORD's experiments: clients of different means, and ordered dropout against separately trained widths."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.by_width import MODEL, SCORED, SEPARATE, line_row, lines_of, width_pictures
from benchmarks.clusters import Clusters
from benchmarks.figures import notes_of
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill, opened_method, read_method
from benchmarks.setups import LR_DROPS
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Result
from edge_fl.methods.capabilities import TrainsWidths
from edge_fl.methods.heterofl import LEVEL_WIDTHS, HeteroFl
from exporter.measure.cases import BATCH

__all__ = ["HETEROGENEOUS", "ORDERED", "bench_heterogeneous", "bench_od"]

HETEROGENEOUS = ("fjord", "fjord+kd", "efd", "fjord+efd", "heterofl", "fedbiad")
ORDERED = ("fjord", "fjord+kd", "efd")

_LOCAL_STEPS = 7  # an epoch of a FEMNIST writer's 140 images in batches of 20
_COLUMNS = (
    "Accuracy is that of the model after the last round (percent, mean and standard deviation over seeds) by the width "
    "at which it is scored: the share of each layer's units, the first ones, that are left. Every method is scored at "
    "the widths that it trains, HeteroFL at its levels 1/8, 1/4, 1/2 and 1 with the factor of its scaler. `efd` trains "
    "a model for each width. Differences are to `efd` at a method's own widths, and to what Flower's FjORD reports of "
    "CIFAR-10 (IID, 100 clients, ResNet-18, 500 rounds of one epoch, step size 0.1), from the narrowest on. FjORD's "
    "paper leaves out the width at which `efd` drops nothing, the narrowest. Uplink is the mean frame of a client and "
    "round. The step size is divided by 10 at half and at three quarters of the rounds, as in FjORD's paper."
)


def bench_heterogeneous(choice: Choice, how: Filling, settings: Sequence[Clusters] = (Clusters(),)) -> Result:
    """Each method among clients of different means; raises as :func:`benchmarks.grid.fill` does."""
    choice = _with_steps(choice)
    found, missing = fill(_grid(choice, settings, HETEROGENEOUS, together=False), how)
    scales = dict.fromkeys(clusters.drop_scale for clusters in settings)
    about = (
        "Clusters of clients that can train no more than p_max of the model: uniform-5 has p_max 1, 0.8 ... 0.2, and "
        "each cluster but the ablest is the drop scale / 5 of the clients. FjORD and HeteroFL give a client first "
        "units (HeteroFL those of the widest level that it can run), FedBIAD rows of its own choice, and `efd` random "
        "units of the model of one width."
    )
    command = f"{_command(choice, 'heterogeneous', settings)}{''.join(f' --drop-scale {s:g}' for s in scales)}"
    return _result("Clients of different means", command, f"{about} {_setting(choice)}", found, missing)


def bench_od(choice: Choice, how: Filling, settings: Sequence[Clusters] = (Clusters(), Clusters(10))) -> Result:
    """Ordered dropout among clients that can all train the whole model.

    Raises as :func:`benchmarks.grid.fill` does, and ConfigError for a method that has no widths.
    """
    choice = _with_steps(choice)
    for method in choice.methods or ORDERED:
        if "widths" not in Clusters().parameters(read_method(method)[0]):
            raise ConfigError(f"'{method}' trains no nested widths: choose among {', '.join(ORDERED)}.")
    found, missing = fill(_grid(choice, settings, ORDERED, together=True), how)
    about = (
        "All clients can train the whole model. FjORD draws a width for each step, one of 5 (uniform-5) or of 10 "
        "(uniform-10), and makes one model of all of them; `efd` drops nothing here, and trains the model of a single "
        "width."
    )
    command = _command(choice, "od", settings)
    return _result("Ordered dropout", command, f"{about} {_setting(choice)}", found, missing)


def _with_steps(choice: Choice) -> Choice:
    return choice if choice.local_steps else replace(choice, local_steps=_LOCAL_STEPS)


def _grid(choice: Choice, settings: Sequence[Clusters], methods: Sequence[str], *, together: bool) -> list[Entry]:
    asked = choice.methods or methods
    return [
        made
        for dataset in choice.datasets
        for clusters in settings
        for method in asked
        for made in _entries(choice, dataset, method, clusters, beside=asked, together=together)
    ]


def _entries(
    choice: Choice, dataset: str, method: str, clusters: Clusters, *, beside: Sequence[str], together: bool
) -> list[Entry]:
    """A run, or of a separate model one for each width of the methods ``beside`` it.

    ``together`` all clients are of the ablest tier.
    """
    columns = {"clusters": clusters.name} | ({} if together else {"drop scale": clusters.drop_scale})
    columns |= {"method": method}
    own = clusters.parameters(read_method(method)[0])
    shared = {"lr_drops": LR_DROPS, "evaluate_every": choice.rounds}  # only the last model is looked at
    tiers, mix = (1, ()) if together else (clusters.count, clusters.mix)
    if opened_method(method).name != SEPARATE:
        scored = _scored(method, clusters)
        return [entry(choice, dataset, method, columns, own, tiers=tiers, mix=mix, scored=scored, **shared)]
    widths = own["widths"][:tiers]
    return [
        entry(
            choice,
            dataset,
            method,
            {**columns, MODEL: width / 1000},
            {"widths": widths, "width": width},
            tiers=tiers,
            mix=mix,
            scored=(width,),
            **shared,
        )
        for width in sorted({*SCORED, *(width for other in beside for width in _scored(other, clusters))})
    ]


def _scored(method: str, clusters: Clusters) -> tuple[int, ...]:
    """The widths, in thousandths, that ``method`` trains among ``clusters``, the narrowest first."""
    opened = opened_method(method)
    if isinstance(opened, HeteroFl):
        return tuple(sorted({LEVEL_WIDTHS[level] for level in clusters.parameters(opened.name)["levels"]}))
    return SCORED if isinstance(opened, TrainsWidths) else (SCORED[-1],)


def _command(choice: Choice, name: str, settings: Sequence[Clusters]) -> str:
    counts = dict.fromkeys(clusters.count for clusters in settings)
    return choice.command(name) + "".join(f" --clusters {count}" for count in counts)


def _setting(choice: Choice) -> str:
    return (
        f"A tenth of the clients a round, {choice.rounds} rounds of {choice.local_steps} steps of a batch of "
        f"{choice.batch or BATCH}; data sets and models are those of `benchmarks/setups.py`, but for what the command "
        "names."
    )


def _result(title: str, command: str, about: str, found: Sequence[Filled], missing: Sequence[str]) -> Result:
    lines = lines_of(found)
    return Result(
        title=title,
        command=command,
        about=f"{about} {_COLUMNS}",
        rows=[line_row(line, lines) for line in lines],
        notes=notes_of(found, missing),
        pictures=width_pictures(lines),
    )
