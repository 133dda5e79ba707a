"""The process of a bundle's programs; :mod:`edge_fl.worker.process` starts it.

It hears on standard input, answers on standard output, and ends when its input does. Libraries and the owner's own code
are loaded first. Then the process confines itself, and only then a program of the bundle is touched.
"""

import faulthandler
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import FrameError, printable
from edge_fl.core.registry import as_ours
from edge_fl.core.server_half import State
from edge_fl.data.held_out import Split
from edge_fl.data.registry import Samples
from edge_fl.data.tokenizer import check_library, unpacked_texts
from edge_fl.recipes.own import use_code
from edge_fl.runtimes.base import RUNTIMES, open_runtime
from edge_fl.worker.confinement import die_with, first_to_go, limit, only_files
from edge_fl.worker.messages import (
    LONGEST_SENTENCE,
    Ask,
    Collect,
    Collected,
    Confinement,
    Hold,
    KeepModel,
    Open,
    Predict,
    Predicted,
    Problem,
    Ready,
    Rehearse,
    Reply,
    Score,
    Scored,
    Timed,
    Train,
    Trained,
)
from edge_fl.worker.pipe import Ends, Pipe
from edge_fl.worker.seccomp import start_filter
from edge_fl.worker.shared import Shared
from edge_fl.worker.work import LocalWork

_Arrays = list[NDArray[Any]]
_NOTHING = Samples(np.empty(0, np.float32), np.empty(0, np.int64))


class _Server:
    """Answers an agent."""

    def __init__(self, pipe: Pipe[Reply, Ask]) -> None:
        self._pipe = pipe
        self._work: LocalWork | None = None
        self._data = Split(_NOTHING, _NOTHING)

    def serve(self) -> None:
        """Answer all that is asked; returns when the agent is gone."""
        while True:
            try:
                ask, arrays = self._pipe.hear()
            except EOFError:
                return
            try:
                answer = self._answer(ask, arrays)
            except Exception as error:  # a program, a library or the owner's code may raise anything
                self._pipe.say(_problem(error))
                continue
            if answer is not None:
                self._pipe.say(*answer)

    def _answer(self, ask: Ask, arrays: _Arrays) -> tuple[Reply, _Arrays] | None:
        if isinstance(ask, Open):
            self._work, confinement = _open(ask)
            return Ready(confinement), []
        work = self._work
        if work is None:
            raise ValueError("no bundle is open")
        reply: Reply
        match ask:
            case Hold() | KeepModel():
                self._hold(ask, arrays, work)
                return None
            case Train():
                update = work.train(ask.task, _content(arrays), _state(ask, arrays), ask.secret)
                reply = Trained(update.loss, tuple(update.state))
                found = [_bytes(update.frame), _bytes(update.withheld), *update.state.values()]
            case Score():
                answer, scores = work.score(ask.task, _content(arrays), _state(ask, arrays))
                reply, found = Scored(answer.loss, answer.sums, dict(scores)), []
            case Collect():
                frame = work.collect(ask.task, _content(arrays), _state(ask, arrays))
                reply, found = Collected(), [_bytes(frame)]
            case Rehearse():
                reply, found = Timed(work.rehearse(ask.task)), []
            case Predict():
                x = unpacked_texts(*arrays) if ask.texts else arrays[0]
                reply, found = Predicted(), [work.predict(x, width=ask.width)]
        return reply, found

    def _hold(self, ask: Hold | KeepModel, arrays: _Arrays, work: LocalWork) -> None:
        if isinstance(ask, KeepModel):
            work.keep(_content(arrays), _state(ask, arrays))
            return
        if ask.texts:
            content, ends, *arrays = arrays
            arrays = [unpacked_texts(content, ends), *arrays]
        x, y, *owner = arrays
        samples = Samples(x, y, owner[0] if owner else None)
        train = ask.part == "train"
        self._data = Split(samples, self._data.test) if train else Split(self._data.train, samples)
        work.hold(self._data)


def _open(ask: Open) -> tuple[LocalWork, Confinement]:
    """Load what is trusted, give up what programs have no need of, and open the bundle."""
    die_with(ask.agent)
    first_to_go()
    # torch names a place for its files as it loads a program, and writes none.
    tempfile.tempdir = os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path.cwd())
    use_code(ask.code)
    RUNTIMES.find(ask.runtime).installed()
    bundle = Bundle.load(Path(ask.bundle), runtime=ask.runtime)
    if bundle.manifest.tokenizer:
        check_library()  # which is imported while its files can be read
    landlock = only_files(bundle.root)
    runtime = open_runtime(ask.runtime, bundle, threads=ask.threads)
    limit(ask.memory)
    seccomp = start_filter()
    return LocalWork(ask.client, runtime), Confinement(seccomp, landlock, ask.memory)


def _state(ask: Train | Score | Collect | KeepModel, arrays: _Arrays) -> State:
    return dict(zip(ask.state, arrays[1:], strict=True))


def _content(arrays: _Arrays) -> memoryview:
    return arrays[0].data.toreadonly()


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, dtype=np.uint8)


def _problem(error: Exception) -> Problem:
    ours = as_ours(error)
    if ours is not error:
        traceback.print_exception(error)
        sys.stderr.flush()
    code = ours.code if isinstance(ours, FrameError) else ""
    return Problem(type(ours).__name__, code, printable(str(ours), LONGEST_SENTENCE))


def _main() -> None:
    faulthandler.enable()
    replies = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not come between the answers
    asks = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    asked, answered = (int(descriptor) for descriptor in sys.argv[1:3])
    ends = Ends(asks, replies, Shared(asked), Shared(answered))
    os.close(asked)
    os.close(answered)
    _Server(Pipe(ends, Ask, trusts=True)).serve()


if __name__ == "__main__":
    _main()
