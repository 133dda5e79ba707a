"""FedBIAD's Tables I and II: methods, and methods with compressors, by data set, the paper's numbers beside ours."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.accounting import counted_bytes, dense_run
from benchmarks.figures import (
    accuracy_figures,
    by_dataset,
    clocks,
    curve_picture,
    finals,
    notes_of,
    uplink_figures,
)
from benchmarks.grid import Choice, Filled, Filling, entry, fill
from benchmarks.reference import TABLE_1, TABLE_2, Reported
from device_sim.simulation.links import LINKS
from edge_fl.measure.table import Result, Row
from exporter.measure.cases import BATCH

__all__ = ["METHODS_1", "METHODS_2", "bench_table1", "bench_table2", "setting_text"]

METHODS_1 = ("fedavg", "feddrop", "afd", "fedmp", "fjord", "heterofl", "fedbiad")
METHODS_2 = (
    "fedavg",
    "fedavg+fedpaq",
    "fedavg+signsgd",
    "fedavg+stc",
    "fedavg+dgc",
    "afd+dgc",
    "fjord+dgc",
    "fedbiad+dgc",
)
_COLUMNS = (
    "Accuracy is that of the model after the last round (percent, mean and standard deviation over seeds, which draw "
    "clients, batches and patterns; all begin with the same weights), best the highest of any round. Uplink is the "
    "mean encoded frame of one client and round, and the ratios beside it are to a dense frame. Counted is the same as "
    "the paper counts (weights of whole kept rows at 4 bytes, no biases, in KiB; of a compressor's entries 64 bits a "
    "position; without a warm-up). Training is the CPU time of all clients of a round on one thread, frames and checks "
    "included, the median over rounds; the machine was shared with other work."
)


@dataclass(frozen=True)
class _Table:
    """One of the paper's: the ``command`` that makes it, its methods, and what it reports by data set and method."""

    command: str
    title: str
    about: str
    methods: tuple[str, ...]
    reported: Mapping[str, Mapping[str, Reported]]


def bench_table1(choice: Choice, how: Filling) -> Result:
    """Dropping methods: accuracy and uplink by method and data set; raises as :func:`benchmarks.grid.fill`."""
    about = (
        "FedBIAD's Table I. The paper gives no ratio of FedMP, widths of FjORD or levels of HeteroFL: theirs are such "
        "that sizes come near the paper's. The output layer is always whole here, which of a language model is much of "
        "it, where the paper's sizes are those of half a decoder."
    )
    return _bench(choice, how, _Table("table1", "Methods (Table I)", about, METHODS_1, TABLE_1))


def bench_table2(choice: Choice, how: Filling) -> Result:
    """Compressors, alone and on dropping methods; raises as :func:`benchmarks.grid.fill`."""
    about = "FedBIAD's Table II, and FedAvg without a compressor: ratios are to its dense updates."
    reported = {dataset: {"fedavg": TABLE_1[dataset]["fedavg"], **lines} for dataset, lines in TABLE_2.items()}
    return _bench(choice, how, _Table("table2", "Compressors (Table II)", about, METHODS_2, reported))


def setting_text(choice: Choice) -> str:
    """How many clients do what, for a table's introduction."""
    return (
        f"A tenth of the clients a round, {choice.rounds} rounds of {choice.local_steps or 60} steps of a batch of "
        f"{choice.batch or BATCH}; data sets, models and dropout rates are those of `benchmarks/setups.py`, but for "
        f"what the command names. FedBIAD's stage one takes the first {55 * choice.rounds // 60} rounds, unless a row "
        "has none. "
    )


def _bench(choice: Choice, how: Filling, table: _Table) -> Result:
    found, missing = fill(
        [
            entry(choice, dataset, method, {"method": method})
            for dataset in choice.datasets
            for method in choice.methods or table.methods
        ],
        how,
    )
    pictures = [
        curve_picture(dataset, group, clocks(group, how, LINKS["5g"], 1.0))
        for dataset, group in by_dataset(found).items()
    ]
    return Result(
        title=table.title,
        command=choice.command(table.command),
        about=f"{table.about} {setting_text(choice)}{_COLUMNS}",
        rows=[_row(filled, table.reported) for filled in found],
        notes=notes_of(found, missing),
        pictures=pictures,
    )


def _row(filled: Filled, reported: Mapping[str, Mapping[str, Reported]]) -> Row:
    theirs = reported.get(filled.run.dataset, {}).get(filled.run.recipe)
    ours = finals(filled)
    counted, dense = counted_bytes(filled.run), counted_bytes(dense_run(filled.run))
    return {
        "data set": filled.run.dataset,
        **filled.entry.columns,
        **accuracy_figures(filled),
        "paper's (%)": f"{theirs.accuracy:.2f}" if theirs else "",
        "difference": sum(ours) / len(ours) - theirs.accuracy if theirs and ours else "",
        **uplink_figures(filled),
        "counted (KiB)": f"{counted / 1024:,.1f}" if counted else "",
        "counted ratio": dense / counted if counted and dense else "",
        "paper's size": theirs.size if theirs else "",
        "paper's ratio": (theirs.ratio or "") if theirs else "",
    }
