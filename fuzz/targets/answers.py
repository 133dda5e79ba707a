"""What the process of a bundle's programs may answer its agent."""

import os
from contextlib import suppress

import msgspec
import numpy as np

from edge_fl.worker.messages import Ask, Confinement, Problem, Ready, Reply, Scored, Timed, Trained
from edge_fl.worker.pipe import Ends, Pipe
from edge_fl.worker.shared import Shared, make_shared
from fuzz.target import Prepared

__all__ = ["answer"]

_LARGEST = 1 << 20  # bytes of an answer's arrays


def _memory() -> Shared:
    descriptor = make_shared(_LARGEST)
    try:
        return Shared(descriptor)
    finally:
        os.close(descriptor)


def answer() -> Prepared:
    """An answer's bytes, as an agent reads them."""
    there, back = _memory(), _memory()

    def run(data: bytes) -> None:
        held = os.memfd_create("fuzz")
        os.write(held, data)
        os.lseek(held, 0, os.SEEK_SET)
        pipe: Pipe[Ask, Reply] = Pipe(
            Ends(held, os.open(os.devnull, os.O_WRONLY), there, back), Reply, largest=_LARGEST
        )
        with suppress(ValueError, EOFError):
            pipe.hear()
        pipe.close()

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    replies: list[tuple[Reply, bool]] = [
        (Trained(0.5, ("scores",)), True),
        (Trained(0.5, ("scores",)), False),
        (Scored(0.5, {"accuracy": (1.0, 2.0)}, {"accuracy": 0.5}), True),
        (Timed(0.1), True),
        (Ready(Confinement(True, 7, 1)), True),
        (Problem("FrameError", "checksum", "It is damaged."), True),
    ]
    return Prepared(run, [_said(reply, array, shared) for reply, shared in replies])


def _said(reply: Reply, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], shared: bool) -> bytes:
    head = msgspec.msgpack.encode(
        (msgspec.Raw(msgspec.msgpack.encode(reply)), ((array.dtype.str, array.shape),), shared)
    )
    return len(head).to_bytes(8, "little") + head + (b"" if shared else array.tobytes())
