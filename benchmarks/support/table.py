"""Which models each runtime trains, found by exporting them; can be resumed."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.records import read_records, write_records
from benchmarks.support.case import SupportCase
from benchmarks.support.suites import SUITES, Suite
from benchmarks.support.trial import Limits, Trial, tried
from edge_fl.measure.table import Result, Row
from exporter.measure.exported import exporter_digest

__all__ = ["bench_support"]

_MOST_BLOCKS = 3  # that a cell names


def bench_support(
    suite: str,
    runtimes: Sequence[str],
    results: Path,
    report: Callable[[str], None],
    *,
    names: Sequence[str] = (),
    limits: Limits,
) -> Result:
    """Export every case for every runtime that ``results`` does not have it for, and tabulate all that it has.

    Parameters
    ----------
    suite
        Of ``SUITES``.
    results
        A JSON file, written anew after each trial. What another version of the exporter tried, or a limit ended, is
        tried again.
    report
        Told of each trial.
    names
        The cases; where there are none, all of the suite.

    Raises
    ------
    DataError
        When ``results`` is damaged.
    StateError
        When it cannot be written.
    """
    kept = [
        trial
        for trial in read_records(results, Trial)
        if trial.exporter == exporter_digest() and not trial.limited
    ]
    trials = {(trial.case, trial.runtime): trial for trial in kept}
    cases = [case for case in SUITES[suite].cases if not names or case.name in names]
    for case in cases:
        for runtime in runtimes:
            if (case.name, runtime) not in trials:
                report(f"{case.name}, {runtime}")
                trials[case.name, runtime] = tried(suite, case.name, runtime, limits)
                write_records(results, list(trials.values()))
    known = {case.name for case in cases}
    return _table(SUITES[suite], cases, [trial for trial in trials.values() if trial.case in known])


def _table(suite: Suite, cases: Sequence[SupportCase], trials: Sequence[Trial]) -> Result:
    notes = list(dict.fromkeys(trial.refused for trial in trials if trial.refused))
    runtimes = sorted({trial.runtime for trial in trials})
    return Result(
        title=suite.title,
        command=suite.command,
        about=suite.about,
        rows=[
            _row(suite.subject, case, runtimes, {t.runtime: t for t in trials if t.case == case.name}, notes)
            for case in cases
        ],
        notes=notes,
    )


def _row(
    subject: str, case: SupportCase, runtimes: Sequence[str], trials: dict[str, Trial], notes: Sequence[str]
) -> Row:
    done = [trial for trial in trials.values() if not trial.refused]
    blocks = done[0].blocks if done else {}
    masked = ", ".join(f"{units} of `{block}`" for block, units in blocks.items())
    if len(blocks) > _MOST_BLOCKS:
        masked = f"{sum(blocks.values())} of {len(blocks)} layers"
    cells = {name: _cell(trials[name], notes) if name in trials else "not tried" for name in runtimes}
    return {subject: case.name, "droppable units": masked or ("none" if done else ""), **cells}


def _cell(trial: Trial, notes: Sequence[str]) -> str:
    if trial.refused:
        return f"no ({notes.index(trial.refused) + 1})"
    return f"{trial.difference:.0e}, {trial.size / 1e3:.0f} kB"
