"""Which layers and operations each runtime trains, found by exporting a tiny model around each; can be resumed."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import msgspec
import torch
from msgspec.structs import replace

from benchmarks.records import read_records, write_records
from benchmarks.support_cases import SupportCase
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import EdgeFLError
from edge_fl.measure.table import Result, Row
from exporter.export import Target, export_bundle
from exporter.measure.exported import exporter_digest
from exporter.sentence import first_line

__all__ = ["COMMAND", "Trial", "bench_support"]

COMMAND = "edge-fl bench support"
_SCRATCH = re.compile(re.escape(gettempdir()) + "/[^/]+/")  # where a program lay when it was proven
_WIDTHS = (1000, 500)
_BATCH = 6
_MOST_BLOCKS = 3  # that a cell names


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one case in one runtime.

    Parameters
    ----------
    exporter
        The digest of the exporter that tried.
    difference
        The largest relative one of any weight, output or loss from torch's.
    size
        Bytes of the train step's program at full width.
    blocks
        Droppable units by the layer whose outputs they are.
    refused
        The exporter's sentence, in place of all these.
    """

    case: str
    runtime: str
    exporter: str
    difference: float = 0.0
    size: int = 0
    blocks: dict[str, int] = {}
    refused: str = ""


def bench_support(
    cases: Sequence[SupportCase], runtimes: Sequence[str], results: Path, report: Callable[[str], None]
) -> Result:
    """Export every case for every runtime that ``results`` does not have it for, and tabulate all that it has.

    Parameters
    ----------
    results
        A JSON file, written anew after each trial. What another version of the exporter tried is tried again.
    report
        Told of each trial.

    Raises
    ------
    DataError
        When ``results`` is damaged.
    StateError
        When it cannot be written.
    """
    kept = [trial for trial in read_records(results, Trial) if trial.exporter == exporter_digest()]
    trials = {(trial.case, trial.runtime): trial for trial in kept}
    for case in cases:
        for runtime in runtimes:
            if (case.name, runtime) not in trials:
                report(f"{case.name}, {runtime}")
                trials[case.name, runtime] = _tried(case, runtime)
                write_records(results, list(trials.values()))
    names = {case.name for case in cases}
    return _table(cases, [trial for trial in trials.values() if trial.case in names])


def _tried(case: SupportCase, runtime: str) -> Trial:
    torch.manual_seed(0)
    target = Target(
        "support",
        "made-up",
        case.input,
        case.classes,
        (runtime,),
        target=case.target,
        widths=_WIDTHS,
        batch=_BATCH,
        loss="sequence_cross_entropy" if case.target.shape else "cross_entropy",
        batch_norm=case.batch_norm,
    )
    trial = Trial(case.name, runtime, exporter_digest())
    try:
        with TemporaryDirectory() as scratch:
            return _measured(trial, export_bundle(case.build(), target, Path(scratch) / "bundle"))
    except EdgeFLError as error:
        return replace(trial, refused=_SCRATCH.sub("", str(error)))
    except Exception as error:  # a fault of the exporter belongs in the table more than any refusal
        return replace(trial, refused=f"Fault: {type(error).__name__}, {first_line(error)}.")


def _measured(trial: Trial, bundle: Bundle) -> Trial:
    parity = bundle.manifest.parity[trial.runtime]
    program = bundle.manifest.step_program(trial.runtime, "plain", bundle.layout.sizes, _BATCH)
    assert program is not None
    return replace(
        trial,
        difference=max(parity.weights, parity.outputs),
        size=bundle.manifest.files[program.file].size,
        blocks=bundle.layout.sizes,
    )


def _table(cases: Sequence[SupportCase], trials: Sequence[Trial]) -> Result:
    notes = list(dict.fromkeys(trial.refused for trial in trials if trial.refused))
    runtimes = sorted({trial.runtime for trial in trials})
    return Result(
        title="What trains where",
        command=COMMAND,
        about="Each line is a tiny model with that layer or operation, exported and proven as any model is: at full "
        "and half width, over several steps with a new pattern each, against torch in double precision. A cell has the "
        "largest relative difference of any weight, output or loss, and the size of the train step's program at full "
        "width; or the number of the sentence below that says why there is none. Droppable are the units that a "
        "pattern can leave out, by layer; the output layer never is, and what else stays dense is trained in full.",
        rows=[
            _row(case, runtimes, {t.runtime: t for t in trials if t.case == case.name}, notes) for case in cases
        ],
        notes=notes,
    )


def _row(case: SupportCase, runtimes: Sequence[str], trials: dict[str, Trial], notes: Sequence[str]) -> Row:
    done = [trial for trial in trials.values() if not trial.refused]
    blocks = done[0].blocks if done else {}
    masked = ", ".join(f"{units} of `{block}`" for block, units in blocks.items())
    if len(blocks) > _MOST_BLOCKS:
        masked = f"{sum(blocks.values())} of {len(blocks)} layers"
    cells = {name: _cell(trials[name], notes) if name in trials else "not tried" for name in runtimes}
    return {"layer or operation": case.name, "droppable units": masked or ("none" if done else ""), **cells}


def _cell(trial: Trial, notes: Sequence[str]) -> str:
    if trial.refused:
        return f"no ({notes.index(trial.refused) + 1})"
    return f"{trial.difference:.0e}, {trial.size / 1e3:.0f} kB"
