"""The program loader of onnxruntime-training, which has an environment of its own and no coverage guidance there.

``make fuzz`` runs ``python -m fuzz.ort_training BUNDLE [CASES]`` there. Each thousand cases have a process, with limits
on memory and on the time of a case. The command ends with 1 where a case raises an undeclared error, crashes, or takes
too long.
"""

import os
import random
import resource
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from edge_fl.core.bundle import Bundle, Program
from edge_fl.core.errors import BundleError

_CASES, _CHUNK = 10_000, 1_000
_SECONDS, _BYTES = 20, 4 << 30


def _damaged(whole: bytes, number: int) -> bytes:
    """The program cut, or with bytes changed, as the case's number says."""
    rng, held = random.Random(number), bytearray(whole)
    kind = rng.randrange(4)
    if kind == 0:
        at, count = rng.randrange(len(held)), rng.randrange(1, 64)
        held[at : at + count] = rng.randbytes(count)
    elif kind == 1:
        del held[rng.randrange(len(held)) :]
    else:
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            held[rng.randrange(len(held))] = rng.randrange(256)
    return bytes(held)


def _try(wholes: list[bytes], cases: range) -> int:
    """Load each case; how many were refused. Anything but a refusal and a session ends the process."""
    import onnxruntime

    from edge_fl.runtimes.onnx import open_session

    onnxruntime.set_default_logger_severity(4)
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    refused = 0
    for number in cases:
        signal.alarm(_SECONDS)
        content = _damaged(wholes[number % len(wholes)], number)
        bundle = cast(Bundle, SimpleNamespace(read=lambda _, held=content: held, root=Path("bundle")))
        try:
            open_session(bundle, Program("step.onnx", "step", (), ()), threads=1)
        except BundleError:
            refused += 1
    return refused


def main(bundle: Path, cases: int = _CASES) -> int:
    """Try so many cases on the programs of ``bundle``; the exit code."""
    held = Bundle.load(bundle, runtime="ort_training")
    wholes = [held.read(file) for file in sorted({p.file for p in held.manifest.programs["ort_training"]})]
    for start in range(0, cases, _CHUNK):
        chunk = range(start, min(start + _CHUNK, cases))
        if not (child := os.fork()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # onnxruntime prints of each program that it cannot read
            refused = _try(wholes, chunk)
            print(f"cases {chunk.start} to {chunk.stop - 1}: {refused} refused", file=sys.stderr, flush=True)
            os._exit(0)
        if status := os.waitpid(child, 0)[1]:
            print(f"a case of {chunk.start} to {chunk.stop - 1} ended the process: {status}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:3])))
