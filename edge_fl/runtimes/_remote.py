"""A runtime that lives in another environment: a process of that environment's Python, and arrays over its pipes.

For runtimes that cannot be installed beside the rest. The process is started with the runtime's name, the
bundle's folder and the number of threads, and ends when its standard input does. A message is its length (8
bytes, little-endian) and msgpack.
"""

import os
import struct
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle, Program
from edge_fl.core.errors import BundleError, EdgeFLError, RuntimeMissingError
from edge_fl.runtimes.base import Compiled, open_runtime

__all__ = ["RemoteRuntime", "serve"]

_LENGTH = struct.Struct("<Q")
_Message = TypeVar("_Message")


class _Array(msgspec.Struct, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: NDArray[Any]) -> "_Array":
        return cls(array.dtype.str, array.shape, array.tobytes())

    @property
    def array(self) -> NDArray[Any]:
        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


class _Call(msgspec.Struct, array_like=True):
    """Run a program of the bundle; without arrays, load it."""

    program: Program
    arrays: list[_Array] | None = None


class _Reply(msgspec.Struct, array_like=True):
    """What a call gave, or the sentence of a BundleError."""

    arrays: list[_Array] = []
    error: str | None = None


class RemoteRuntime:
    """A bundle opened in the runtime ``name`` of the environment whose interpreter is ``python``.

    Raises RuntimeMissingError when the process does not come up, from any method when it is gone.
    """

    def __init__(self, python: str, name: str, bundle: Bundle, *, threads: int = 1) -> None:
        self._what = f"the runtime '{name}' of '{python}'"
        command = [python, "-m", "edge_fl.runtimes._remote", name, str(bundle.root), str(threads)]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise RuntimeMissingError(f"There is no Python at '{python}': {error.strerror}.") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        weakref.finalize(self, _end, self._process)

    def load(self, program: Program) -> Compiled:
        """Load one program there; raises BundleError where the runtime cannot take it."""
        self._call(_Call(program))

        def run(inputs: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
            return self._call(_Call(program, [_Array.of(array) for array in inputs]))

        return run

    def _call(self, call: _Call) -> list[NDArray[np.float32]]:
        try:
            _write(self._to, call)
            reply = _read(self._from, _Reply)
        except (BrokenPipeError, EOFError) as error:
            raise RuntimeMissingError(f"There is no more answer from {self._what}: see what it wrote.") from error
        if reply.error is not None:
            raise BundleError(reply.error)
        return [array.array.copy() for array in reply.arrays]


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.communicate()


def _write(stream: IO[bytes], message: _Call | _Reply) -> None:
    data = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes], kind: type[_Message]) -> _Message:
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    return msgspec.msgpack.decode(stream.read(_LENGTH.unpack(header)[0]), type=kind)


def serve(name: str, root: Path, threads: int) -> None:
    """Answer the calls on standard input until it ends."""
    calls, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between the replies
    runtime = open_runtime(name, Bundle.load(root, runtime=name), threads=threads)
    loaded: dict[str, Compiled] = {}
    while True:
        try:
            call = _read(calls, _Call)
        except EOFError:
            return
        try:
            if call.arrays is None:
                loaded[call.program.file] = runtime.load(call.program)
                _write(replies, _Reply())
            else:
                outputs = loaded[call.program.file]([array.array for array in call.arrays])
                _write(replies, _Reply([_Array.of(output) for output in outputs]))
        except BundleError as error:
            _write(replies, _Reply(error=str(error)))


if __name__ == "__main__":
    try:
        serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    except EdgeFLError as error:
        sys.exit(f"edge-fl: {error}")
