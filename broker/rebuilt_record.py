"""A run's record made anew from the other files of its folder, where the database is damaged."""

import itertools
import logging
import os
import re
from contextlib import closing
from pathlib import Path

import msgspec
from sqlalchemy.engine import URL

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
_NEW = "state.sqlite.new"
_NUMBERED = re.compile(r"(\d{5})\.")


def reopen(root: Path) -> Store:
    """The record of the run in ``root``, which another process left.

    A damaged one is put aside, and made anew of settings and finished rounds, which have files of their own. The round
    that was under way is lost with it. It is noted as one without updates: devices that had an update of it accepted
    take no task of that round any more. So are later ones that the folder still shows, by a model or by updates.
    Devices register by themselves.

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
        _make(root, settings, rounds)
        aside = _exchange(root)
        _log.error(
            "%s The run goes on after round %d: what was asked and answered since is lost. The damaged record is '%s'.",
            error,
            rounds[-1].round,
            aside,
        )
        return Store(local_url(root))


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


def _make(root: Path, settings: RunSettings, rounds: list[RoundMetrics]) -> None:
    """The new record, beside the damaged one: a process that is killed meanwhile leaves that one to the next."""
    file = root / _NEW
    for part in _PARTS:
        file.with_name(f"{file.name}{part}").unlink(missing_ok=True)
    url = URL.create("sqlite", database=str(file))
    with closing(Store(url, settings.config.run, msgspec.json.encode(settings))) as store:
        for metrics in [*rounds, *_lost(root, settings, rounds)]:
            store.close_round(metrics)
    file.with_name(f"{file.name}.lock").unlink(missing_ok=True)


def _lost(root: Path, settings: RunSettings, rounds: list[RoundMetrics]) -> list[RoundMetrics]:
    """The rounds that nothing is known of, as far as any file shows one, and at least the next.

    Nobody knows whom they asked: all devices count as asked, which is the most that privacy may have cost.
    """
    last = rounds[-1].round
    names = (path.name for folder in ("checkpoints", "updates") for path in (root / folder).glob("*"))
    shown = [int(found[1]) for name in names if (found := _NUMBERED.match(name))]
    until = min(max([last + 1, *shown]), settings.config.rounds)
    asked = {client: tier for metrics in rounds for client, tier in metrics.tiers.items()}
    return [
        RoundMetrics(number, 0.0, None, None, {}, {}, {}, {}, tiers=asked) for number in range(last + 1, until + 1)
    ]


def _exchange(root: Path) -> Path:
    """Put the new record in the place of the damaged one at once, and that aside."""
    file = Path(str(local_url(root).database))
    names = (file.with_name(f"{file.name}.damaged-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    os.link(file, aside)
    for part in _PARTS[1:]:
        held = file.with_name(f"{file.name}{part}")
        if held.exists():
            held.rename(aside.with_name(f"{aside.name}{part}"))
    (root / _NEW).replace(file)
    return aside
