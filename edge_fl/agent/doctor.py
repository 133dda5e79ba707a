"""What an agent needs on this machine, looked at one thing after another before it is left alone."""

import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import edge_fl
from edge_fl.agent.state import in_use, owner_of
from edge_fl.core.errors import BrokerError, ConfigError, EdgeFLError, StateError
from edge_fl.data.held_out import HeldOut
from edge_fl.data.sources.base import open_source
from edge_fl.data.tokenizer import check_library
from edge_fl.identity.signing import SigningKey
from edge_fl.runtimes.base import RUNTIMES
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.probe import round_trip
from edge_fl.wire.messages import Topics
from edge_fl.worker.confinement import confinement_here, memory_share, told

__all__ = ["Examined", "Finding", "examine"]

_CLOCK_SECONDS = 60.0  # by which file systems and clocks may differ
_LEAST_DISK = 64 << 20  # bytes: a bundle, the model's state, and room for the next
_LEAST_MEMORY = 256 << 20  # bytes: what the README says of an agent's peak, and the model's own


@dataclass(frozen=True)
class Examined:
    """The agent that is to run, as :class:`edge_fl.agent.agent.AgentSettings` and ``--data`` have it."""

    broker: BrokerAddress
    client: str
    data: str
    state: Path
    runtime: str
    fleet: str
    connect_timeout: float
    test_share: float = 0.0
    in_process: bool = False
    program_memory: int | None = None


@dataclass(frozen=True)
class Finding:
    """What came of one check, in a sentence; ``code`` is the exit code that an agent would end with, else 0."""

    check: str
    level: Literal["ok", "warning", "failed"]
    sentence: str
    code: int = 0


def examine(agent: Examined) -> Iterator[Finding]:
    """Every check in turn; none stops the others."""
    for check, look in _CHECKS.items():
        try:
            sentence, wrong = look(agent)
            yield Finding(check, "warning" if wrong else "ok", sentence)
        except EdgeFLError as error:
            yield Finding(check, "failed", str(error), error.exit_code)
        except OSError as error:
            where = f"'{error.filename}'" if error.filename else "The state folder"
            said = f"{where} cannot be looked at: {error.strerror}; run the doctor as the agent's user."
            yield Finding(check, "failed", said, StateError.exit_code)


_Seen = tuple[str, bool]
"""A sentence, and whether it is a warning."""


def _broker(agent: Examined) -> _Seen:
    """A session of its own, which leaves that of an agent that runs alone, and a message to itself."""
    known = agent.broker.access.user is not None or agent.broker.access.cert is not None
    if known and in_use(agent.state):
        return (
            f"An agent runs from '{agent.state}', and a broker that knows identities would end its session for this "
            "check's: look at its log, or stop it and check again.",
            True,
        )
    name = f"doctor-{uuid.uuid4().hex[:16]}"
    topic = Topics(agent.fleet).doctor(agent.client)
    seconds = round_trip(agent.broker, client=name, topic=topic, timeout=agent.connect_timeout)
    if seconds is not None:
        return f"{agent.broker} answers, a message takes {1000 * seconds:.0f} ms.", False
    raise BrokerError(
        f"{agent.broker} takes the connection, and a message to '{topic}' does not come back: let the device publish "
        "and subscribe there, and be called at the broker as its --id."
    )


def _certificate(agent: Examined) -> _Seen:
    """The files, and whether what crosses a network is encrypted; whether both sides take them, the broker shows."""
    broker, access = agent.broker, agent.broker.access
    if broker.encrypted:
        access.context()
        until = None if access.signing is None else SigningKey.read(access.signing).until
        if until is not None and until < datetime.now(UTC):
            raise ConfigError(f"'{access.signing}' expired on {until:%Y-%m-%d}: have a new identity made.")
        trusted = "the system's authorities" if access.ca is None else f"'{access.ca}'"
        shown = "" if access.cert is None else f", and '{access.cert}' is shown"
        return f"{broker.scheme}:// is encrypted, certificates of {trusted} are trusted{shown}.", False
    if broker.loopback:
        return f"There is none, and {broker} is this machine.", False
    return (
        f"There is none: mqtt:// is not encrypted, so keep {broker} and this device on a network you trust, or use "
        "mqtts://.",
        True,
    )


def _clock(agent: Examined) -> _Seen:
    """It cannot be earlier than what was written here."""
    now = time.time()
    package = Path(edge_fl.__file__)
    known = {path: found.st_mtime for path, found in _files(agent.state).items()} | {
        package: package.stat().st_mtime
    }
    newest = max(known, key=lambda path: known[path])
    written = known[newest]
    if now + _CLOCK_SECONDS < written:
        return (
            f"The clock says {_date(now)}, and '{newest}' was written at {_date(written)}: set it, for instance by "
            "NTP, for logs are dated by it.",
            True,
        )
    return f"It says {_date(now)}.", False


def _runtime(agent: Examined) -> _Seen:
    return f"{RUNTIMES.find(agent.runtime).installed()}.", False


def _programs(agent: Examined) -> _Seen:
    """What a bundle's programs are held by, as this kernel says."""
    if agent.in_process:
        return (
            "They run in the agent's own process, and have its rights: only for a coordinator that you trust.",
            True,
        )
    memory = memory_share() if agent.program_memory is None else agent.program_memory
    sentence, whole = told(confinement_here(memory))
    return sentence, not whole


def _data(agent: Examined) -> _Seen:
    data = HeldOut(open_source(agent.data), agent.test_share, agent.client).split()
    train, held = data.train, f", and {len(data.test.y)} held out" if agent.test_share else ""
    classes = f", classes {train.y.min()} to {train.y.max()}" if train.y.size else ""
    if train.are_texts:
        check_library()
        return f"{len(train.y)} texts{classes}{held}.", False
    return f"{len(train.y)} samples of shape {train.x.shape[1:]} in {train.x.dtype}{classes}{held}.", False


def _state(agent: Examined) -> _Seen:
    owner = owner_of(agent.state)
    if owner not in (None, agent.client):
        raise StateError(
            f"The state folder '{agent.state}' belongs to client '{owner}', not to '{agent.client}': "
            "take another --state, or remove the folder."
        )
    folder = _nearest(agent.state)
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(4096))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise StateError(
            f"'{folder}' cannot be written: {error.strerror}; give it to this user, or name another with --state."
        ) from error
    return f"'{agent.state}' can be written" + (f", and is {agent.client}'s." if owner else ", and is new."), False


def _disk(agent: Examined) -> _Seen:
    held = sum(found.st_size for found in _files(agent.state).values())
    wanted = max(_LEAST_DISK, 2 * held)  # its next bundle may be larger than the one it has
    free = shutil.disk_usage(_nearest(agent.state)).free
    if free < wanted:
        raise StateError(f"'{agent.state}' has {_mb(free)} left, and an agent wants {_mb(wanted)}: free some.")
    return f"{_mb(free)} are free, and the state folder takes {_mb(held)}.", False


def _memory(_agent: Examined) -> _Seen:
    free = _available_memory()
    if free < _LEAST_MEMORY:
        return f"{_mb(free)} are available, and an agent may take {_mb(_LEAST_MEMORY)}: end something else.", True
    return f"{_mb(free)} are available.", False


_CHECKS: dict[str, Callable[[Examined], _Seen]] = {
    "broker": _broker,
    "certificate": _certificate,
    "clock": _clock,
    "runtime": _runtime,
    "programs": _programs,
    "data": _data,
    "state": _state,
    "disk": _disk,
    "memory": _memory,
}


def _files(folder: Path) -> dict[Path, os.stat_result]:
    """All that are there, but for those that an agent at work takes away meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found[path] = path.stat()
    return {path: seen for path, seen in found.items() if stat.S_ISREG(seen.st_mode)}


def _nearest(folder: Path) -> Path:
    """The folder itself, or the one that it would be made in."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
