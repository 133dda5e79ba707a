"""A run's record made anew from the other files of its folder, where the database is damaged."""

import itertools
import logging
from pathlib import Path

import msgspec

from broker.database import DamagedRecordError, local_url
from broker.run_folder import SETTINGS
from broker.settings import RunSettings
from broker.store import Store
from edge_fl.core.errors import StateError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["reopen"]

_log = logging.getLogger(__name__)
_PARTS = ("", "-wal", "-shm")


def reopen(root: Path) -> Store:
    """The record of the run in ``root``, which another process left.

    A damaged one is put aside, and made anew of settings and finished rounds, which have files of their own. The round
    that was under way is lost with it. It is noted as one without updates: devices that had an update of it accepted
    take no task of that round any more. Devices register by themselves.

    Raises
    ------
    StateError
        When there is no run, another process is at work on it, or too little of it is left.
    """
    try:
        store = Store(local_url(root))
        try:
            store.check()
        except BaseException:
            store.close()
            raise
        return store
    except DamagedRecordError as error:
        settings, rounds = _settings(root, error), _rounds(root)
        if not rounds:
            raise StateError(f"{error} No round of it was finished: start it anew in another folder.") from error
        aside = _put_aside(root)
        _log.error(
            "%s The run goes on after round %d: what was asked and answered since is lost. The damaged record is '%s'.",
            error,
            rounds[-1].round,
            aside,
        )
        return _made(root, settings, rounds)


def _settings(root: Path, error: StateError) -> RunSettings:
    try:
        return msgspec.json.decode((root / SETTINGS).read_bytes(), type=RunSettings)
    except (OSError, *UNREADABLE) as missing:
        raise StateError(f"{error} It cannot be made anew, as '{root / SETTINGS}' cannot be read.") from missing


def _rounds(root: Path) -> list[RoundMetrics]:
    """Those that were written down whole, from the first on."""
    rounds: list[RoundMetrics] = []
    try:
        lines = (root / "metrics.jsonl").read_bytes().splitlines()
    except OSError:
        return []
    for number, line in enumerate(lines, start=1):
        try:
            found = msgspec.json.decode(line, type=RoundMetrics)
        except UNREADABLE:
            break
        if found.round != number:
            break
        rounds.append(found)
    return rounds


def _put_aside(root: Path) -> Path:
    file = Path(str(local_url(root).database))
    names = (file.with_name(f"{file.name}.damaged-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    for part in _PARTS:
        held = file.with_name(f"{file.name}{part}")
        if held.exists():
            held.rename(aside.with_name(f"{aside.name}{part}"))
    return aside


def _made(root: Path, settings: RunSettings, rounds: list[RoundMetrics]) -> Store:
    store = Store(local_url(root), settings.config.run, msgspec.json.encode(settings))
    last = rounds[-1]
    lost = RoundMetrics(last.round + 1, 0.0, None, None, {}, {}, {}, {})
    for metrics in [*rounds, lost] if lost.round <= settings.config.rounds else rounds:
        store.close_round(metrics)
    return store
