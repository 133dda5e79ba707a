"""The models after the last rounds, and what the server had learned by then: in a folder, or in an object store."""

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edge_fl.core.arrays import packed, unpacked
from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import ConfigError, StateError, said
from edge_fl.core.selection import Weights
from edge_fl.core.server_half import State

__all__ = ["Checkpoints"]

_log = logging.getLogger(__name__)
_KEPT = 3
_WEIGHTS, _LEARNED = ".safetensors", ".learned.npz"
_DIGEST = "__sha256__"  # among what was learned, of the weights beside it; a zip has checksums of its own
_NAME = re.compile(rf"(\d{{5,}})({re.escape(_WEIGHTS)}|{re.escape(_LEARNED)})")


class _DamagedError(Exception):
    """A model is not as it was written, or is not there."""


class Checkpoints:
    """One run's.

    Parameters
    ----------
    place
        A folder, made if need be, or a URL of an object store, such as ``s3://bucket/run``.

    Raises
    ------
    ConfigError
        When that is no place that files can be put, or what reaches it is not installed.
    StateError
        When it cannot be written; so do the methods.
    """

    def __init__(self, place: str) -> None:
        self.place = re.sub("//[^/@]*@", "//", place)  # without a password, for messages
        try:
            self._files, self._root = fsspec.core.url_to_fs(place)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"Models cannot be kept at '{self.place}': {said(error)}.") from error
        self._near = isinstance(self._files, LocalFileSystem)
        if self._near:  # an object store has no folders, and would take one for a new bucket
            with self._errors("written"):
                self._files.makedirs(self._root, exist_ok=True)

    def keep(self, round: int, weights: Weights, learned: State) -> None:
        """Put the model after ``round`` there, and what the server had learned."""
        content = save(dict(weights))
        self._write(f"{round:05d}{_LEARNED}", packed({**learned, _DIGEST: _digest(content)}))
        self._write(f"{round:05d}{_WEIGHTS}", content)

    def model(self, round: int) -> tuple[dict[str, NDArray[np.float32]], State]:
        """The model after a finished ``round``, and what the server had learned; StateError when they are damaged."""
        try:
            return self._sound(round)
        except _DamagedError as error:
            raise StateError(f"{error}; the run cannot be continued.") from error

    def newest(self, round: int) -> tuple[int, dict[str, NDArray[np.float32]], State]:
        """The newest sound model of those after ``round`` and before, the number of its round first.

        Each that is damaged or missing is logged. StateError when none is sound, or they cannot be read just now.
        """
        for number in range(round, max(round - _KEPT, 0), -1):
            try:
                return number, *self._sound(number)
            except _DamagedError as error:
                _log.error("%s", error)
        raise StateError(f"No model at '{self.place}' is sound; the run cannot be continued.")

    def _sound(self, round: int) -> tuple[dict[str, NDArray[np.float32]], State]:
        name = f"{round:05d}{_WEIGHTS}"
        with self._errors("read"):
            content, beside = (self._files.cat_file(self._path(n)) for n in (name, f"{round:05d}{_LEARNED}"))
        try:
            learned = unpacked(beside)
            if not np.array_equal(learned.pop(_DIGEST), _digest(content)):
                raise ValueError("its SHA-256 is not the one that was written down")
            return load(content), learned
        except (ValueError, KeyError, SafetensorError) as error:
            raise _DamagedError(
                f"The model of round {round}, '{self._path(name)}', is damaged ({said(error)})"
            ) from error

    def prune(self, newest: int) -> None:
        """All but the last, up to that of the round ``newest``, are done with; what else is there is not touched."""
        with self._errors("cleared"):
            for path in map(str, self._files.ls(self._root, detail=False)):
                found = _NAME.fullmatch(path.rpartition("/")[2])
                if found and int(found[1]) <= newest - _KEPT:
                    self._files.rm_file(path)

    def _write(self, name: str, content: bytes) -> None:
        if self._near:
            write_atomically(Path(self._path(name)), content)
            return
        with self._errors("written"):
            self._files.pipe_file(self._path(name), content)  # an object store has all of it, or nothing

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if done == "read":
                raise _DamagedError(f"'{error.filename or said(error)}' cannot be read: it is missing") from error
            raise StateError(f"The models at '{self.place}' cannot be {done} ({said(error)}).") from error
        except Exception as error:  # each kind of file system has errors of its own
            raise StateError(f"The models at '{self.place}' cannot be {done} ({said(error)}).") from error


def _digest(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(content).digest(), dtype=np.uint8)
