"""The device's state folder: who it is, the bundles it has fetched, and what its methods remember.

Every write is atomic. Method state is versioned by round: what a round of training leaves behind is *staged*, and
becomes the state only when the coordinator is known to have accepted that round's update. So a retry of round r
starts from the state before r, and a refused update leaves no trace.
"""

import fcntl
import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np

from edge_fl.core.arrays import packed, unpacked
from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import StateError, said
from edge_fl.core.secret_draws import KEY_BYTES
from edge_fl.core.server_half import State
from edge_fl.wire.messages import check_id

__all__ = ["MethodState", "StateFolder", "empty_folder", "in_use", "owner_of", "state_home"]

_log = logging.getLogger(__name__)
_ROUND = "__round__"
_IDENTITY = "identity.json"
_METHOD = "method"
_SECRET = "noise.key"


class StateFolder:
    """One device's folder, held by one process at a time.

    Parameters
    ----------
    root
        Made if need be.
    client
        The device's id; the folder belongs to it from then on.

    Raises
    ------
    StateError
        When the folder cannot be written, is in use, or belongs to another client.
    """

    def __init__(self, root: Path, client: str) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = (root / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._claim(client)
        except BlockingIOError as error:
            raise StateError(f"Another device process is using the state folder '{root}'.") from error
        except OSError as error:
            raise StateError(f"The state folder '{root}' cannot be used: {error.strerror}.") from error

    def _claim(self, client: str) -> None:
        identity = self.root / _IDENTITY
        if not identity.exists():
            write_atomically(identity, json.dumps({"client": client}).encode())
        owner = owner_of(self.root)
        if owner != client:
            raise StateError(
                f"The state folder '{self.root}' belongs to client '{owner}', not to '{client}': "
                "take another --state, or remove the folder."
            )

    def bundle(self, digest: str, besides: str | None = None) -> Path:
        """Where the bundle is kept whose manifest hashes to ``digest``; others are removed, but for the one
        ``besides``.
        """
        return _alone(self.root / "bundles", digest, besides)

    def method(self, run: str) -> "MethodState":
        """What methods remember of ``run``; what they remembered of others is removed."""
        return MethodState(_alone(self.root / _METHOD, check_id(run)))

    def remembered(self, run: str, round: int) -> State:
        """What methods remember of ``run`` after ``round``; nothing is removed."""
        return MethodState(self.root / _METHOD / check_id(run)).after(round)

    def secret(self) -> bytes:
        """What keys the noise that this device adds to its updates: drawn once, and told to nobody.

        Raises StateError when it cannot be read or written.
        """
        path = self.root / _SECRET
        try:
            held = path.read_bytes()
        except FileNotFoundError:
            held = b""
        except OSError as error:
            raise StateError(f"'{path}' cannot be read: {error.strerror}.") from error
        if len(held) != KEY_BYTES:
            held = os.urandom(KEY_BYTES)
            write_atomically(path, held, secret=True)
        return held

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()


def state_home() -> Path:
    """Where devices have their state folders unless they name one."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "edge-fl"


def empty_folder(root: Path) -> Path:
    """A folder in a state folder that stays empty; raises StateError where it cannot be made."""
    folder = root / "empty"
    try:
        folder.mkdir(mode=0o500, exist_ok=True)
    except OSError as error:
        raise StateError(f"'{folder}' cannot be made: {error.strerror}.") from error
    return folder


def in_use(root: Path) -> bool:
    """Whether a device process has the state folder now."""
    try:
        with (root / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it is another user's
        return False
    return False


def owner_of(root: Path) -> str | None:
    """The client that a state folder belongs to, None for nobody yet; raises StateError where that is damaged."""
    identity = root / _IDENTITY
    try:
        return str(json.loads(identity.read_bytes())["client"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"'{identity}' cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"'{identity}' is damaged; remove it to let a client take the folder.") from error


class MethodState:
    """The accepted state of one run's method, and the staged one of the round under way.

    Parameters
    ----------
    folder
        Holds ``accepted.npz`` and, between training and verdict, ``staged.npz``.
    """

    def __init__(self, folder: Path) -> None:
        self._accepted, self._staged = folder / "accepted.npz", folder / "staged.npz"

    def before(self, accepted: int) -> State:
        """The state to start a round from, given the last round the coordinator accepted (0: none).

        A staged state of that very round is accepted now: its verdict was lost on the way.
        """
        if self._staged.exists():
            if _read(self._staged)[0] == accepted:
                self.accept()
            else:
                self.discard()
        return _read(self._accepted)[1]

    def after(self, round: int) -> State:
        """The state as ``round`` left it, where that is staged and its verdict lost; else as it was accepted last."""
        number, staged = _read(self._staged)
        return staged if number == round else _read(self._accepted)[1]

    def last(self) -> int:
        """The last round that was accepted; 0 for none."""
        return _read(self._accepted)[0]

    def stage(self, round: int, state: State) -> None:
        """Keep what ``round`` left behind, until its verdict; raises StateError when it cannot be written."""
        write_atomically(self._staged, packed({**state, _ROUND: np.array(round)}))

    def accept(self) -> None:
        """The staged round was accepted; raises StateError where that cannot be kept, and the staged state stays."""
        try:
            self._staged.replace(self._accepted)
        except OSError as error:
            raise StateError(f"'{self._accepted}' cannot be written: {error.strerror}.") from error

    def discard(self) -> None:
        """The staged round was rejected or is to be done again; raises StateError where that cannot be kept."""
        try:
            self._staged.unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"'{self._staged}' cannot be removed: {error.strerror}.") from error


def _alone(folder: Path, name: str, besides: str | None = None) -> Path:
    """The path of ``name`` in ``folder``, whose other entries are removed: a device's disk does not fill up."""
    for other in folder.iterdir() if folder.exists() else ():
        if other.name not in (name, besides):
            shutil.rmtree(other, ignore_errors=True)
    return folder / name


def _read(path: Path) -> tuple[int, State]:
    """The round and the state of a file, 0 and nothing where there is none. A damaged one is put aside, and said."""
    try:
        state = unpacked(path.read_bytes())
        return int(state.pop(_ROUND)), state
    except FileNotFoundError:
        return 0, {}
    except (ValueError, KeyError) as error:
        aside = path.with_suffix(".damaged")
        _log.warning(
            "'%s' is damaged (%s): what the method remembered is lost, and it begins anew; see '%s'",
            path,
            said(error),
            aside,
        )
        path.replace(aside)
        return 0, {}
    except OSError as error:
        raise StateError(f"'{path}' cannot be read: {error.strerror}.") from error
