"""The agent's end of a bundle's programs in a process of their own.

The process is started with the bundle, and again when a task finds none. It has the samples, which cross once, and
loaded programs, until the bundle is done with. A process that crashes, or takes too long, costs one task.
"""

import logging
import math
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import (
    BundleError,
    ConfigError,
    DataError,
    EdgeFLError,
    FrameError,
    MemoryLimitError,
    RunError,
    RuntimeMissingError,
    printable,
)
from edge_fl.core.layout import Layout
from edge_fl.core.server_half import State
from edge_fl.data.held_out import Split
from edge_fl.data.tokenizer import packed_texts
from edge_fl.recipes.own import used_code
from edge_fl.runtimes.base import RUNTIMES
from edge_fl.training.update import Update
from edge_fl.wire.messages import CollectStatistics, Evaluate, Evaluated, Task
from edge_fl.worker.confinement import worker_environment
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
from edge_fl.worker.pipe import Ends, Pipe, Silent
from edge_fl.worker.shared import Shared, make_shared
from edge_fl.worker.work import Content, Inputs, Work

__all__ = ["WorkerProcess", "WorkerSettings"]

_log = logging.getLogger(__name__)
_ERRORS: dict[str, type[EdgeFLError]] = {
    error.__name__: error
    for error in (BundleError, ConfigError, DataError, MemoryLimitError, RunError, RuntimeMissingError)
}
"""What a process may answer with: none that ends an agent, or makes it wait."""
_ARRAYS_A_MODEL = 16  # what a method remembers is at most so many times as large as a model
_INPUTS = 1000  # that are predicted at a time, if their outputs have room
_ROOM = 64 << 20  # bytes: and so much more
_CRASH_SECONDS = 5.0  # for a process that has closed its pipes to be gone
_Arrays = Sequence[NDArray[Any]]
_Part = Literal["train", "test", "model"]
_Reply = TypeVar("_Reply", Ready, Trained, Scored, Collected, Timed, Predicted)


@dataclass(frozen=True)
class WorkerSettings:
    """How programs are run.

    Parameters
    ----------
    client
        The device's id.
    runtime
        The runtime, and the CPU ``threads`` that a step may use.
    folder
        An empty folder, in which the process lives.
    memory
        Bytes that programs may take.
    seconds
        The most that a task may take.
    """

    client: str
    runtime: str
    folder: Path
    memory: int
    seconds: float
    threads: int = 1


class WorkerProcess(Work):
    """A bundle, opened in a process of its own.

    Parameters
    ----------
    bundle
        Verified; its folder is read by the process.
    settings
        How.

    Attributes
    ----------
    confinement
        What holds the process.

    Raises
    ------
    RuntimeMissingError
        When the runtime is not installed, the bundle has no programs for it, or no process can be started.
    EdgeFLError
        When the process cannot be made ready otherwise.
    """

    confinement: Confinement

    def __init__(self, bundle: Bundle, settings: WorkerSettings) -> None:
        self.bundle, self._settings = bundle, settings
        self._data: Split | None = None
        self._kept: tuple[Content, State] = b"", {}
        self._output: NDArray[np.float32] | None = (
            None  # of one input: its shape is the bundle's, and says how large
        )
        self._running: _Running | None = None
        RUNTIMES.check(settings.runtime)
        if sys.platform != "linux":
            raise RuntimeMissingError(
                "A bundle's programs have a process of their own on Linux alone: take --in-process."
            )
        self._start()

    def hold(self, data: Split) -> None:
        """Take these samples from now on."""
        self._data = data
        if self._running is not None:
            self._running.held -= {"train", "test"}

    def train(self, task: Task, model: Content, state: State, secret: bytes | None = None) -> Update:
        """Train on the samples."""
        trained, (frame, withheld, *kept) = self._ask(
            Train(task, tuple(state), secret), _arrays(model, state), Trained, part="train"
        )
        if len(kept) != len(trained.state) or not math.isfinite(trained.loss):
            raise RunError("The bundle's programs give a loss that is not finite, or a state without names.")
        state = dict(zip(trained.state, kept, strict=True))
        return Update(frame.tobytes(), trained.loss, state, withheld.tobytes())

    def score(self, task: Evaluate, model: Content, state: State) -> tuple[Evaluated, Mapping[str, float]]:
        """Score the model on the samples that are held out."""
        scored, _ = self._ask(Score(task, tuple(state)), _arrays(model, state), Scored, part="test")
        assert self._data is not None
        samples = len(self._data.test.y)
        return Evaluated(task.run, task.round, samples, scored.loss, scored.sums), scored.scores

    def collect(self, task: CollectStatistics, model: Content, state: State) -> bytes:
        """The frame of collected statistics."""
        _, arrays = self._ask(Collect(task, tuple(state)), _arrays(model, state), Collected, part="train")
        return arrays[0].tobytes()

    def rehearse(self, task: Task) -> float:
        """Seconds that a step takes."""
        timed, _ = self._ask(Rehearse(task), [], Timed, part="train")
        if not 0 < timed.seconds < math.inf:
            raise RunError(f"The bundle's programs claim that a step takes {timed.seconds} s.")
        return timed.seconds

    def keep(self, model: Content, state: State) -> None:
        """Predict by this frame from now on."""
        self._kept = model, state
        if self._running is not None:
            self._running.held.discard("model")

    def predict(self, x: Inputs, *, width: int) -> NDArray[np.float32]:
        """Outputs of the model that is kept."""
        if self._output is None:
            self._output = self._outputs(x[:1], width)
        most = max(1, min(_INPUTS, _ROOM // max(1, self._output.nbytes)))
        parts = [self._outputs(x[start : start + most], width) for start in range(0, len(x), most)]
        if any(part.shape[1:] != self._output.shape[1:] for part in parts):
            raise _no_outputs()
        return np.concatenate(parts)

    def _outputs(self, x: Inputs, width: int) -> NDArray[np.float32]:
        _, arrays = self._ask(Predict(width, x.dtype == object), _sent(x), Predicted, part="model")
        if len(arrays) != 1 or arrays[0].dtype != np.float32 or arrays[0].shape[:1] != x.shape[:1]:
            raise _no_outputs()
        return arrays[0]

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._end(self._running)

    def resident(self) -> int:
        """Bytes of memory that the process has now; 0 without one."""
        return 0 if self._running is None else self._running.resident()

    def _start(self) -> "_Running":
        settings = self._settings
        running = self._running = _Running(settings, self.bundle.layout)
        ask = Open(
            agent=os.getpid(),
            client=settings.client,
            runtime=settings.runtime,
            bundle=str(self.bundle.root.absolute()),
            threads=settings.threads,
            memory=settings.memory,
            code=tuple(used_code()),
        )
        self.confinement = self._exchange(running, [(ask, [])], Ready)[0].confinement
        return running

    def _ask(
        self, ask: Ask, arrays: _Arrays, wanted: type[_Reply], *, part: _Part
    ) -> tuple[_Reply, list[NDArray[Any]]]:
        """Ask, once the process has the samples or the model; for its answer, which must be of the kind ``wanted``."""
        running = self._running or self._start()
        asks: list[tuple[Ask, _Arrays]] = [(ask, arrays)]
        if part not in running.held:
            asks.insert(0, self._model() if part == "model" else self._samples(part))
            running.held.add(part)
        return self._exchange(running, asks, wanted)

    def _model(self) -> tuple[Ask, _Arrays]:
        return KeepModel(tuple(self._kept[1])), _arrays(*self._kept)

    def _samples(self, part: Literal["train", "test"]) -> tuple[Ask, _Arrays]:
        assert self._data is not None, "samples are held before anything is asked"
        samples = self._data.train if part == "train" else self._data.test
        each = (*_sent(samples.x), samples.y, samples.owner)
        return Hold(part, samples.are_texts), [array for array in each if array is not None]

    def _exchange(
        self, running: "_Running", asks: Sequence[tuple[Ask, _Arrays]], wanted: type[_Reply]
    ) -> tuple[_Reply, list[NDArray[Any]]]:
        try:
            reply, arrays = running.exchange(asks, self._settings.seconds)
        except Silent:
            self._end(running)
            raise RunError(
                f"The bundle's programs took longer than {self._settings.seconds:g} s, and were ended; start the "
                "device with a larger --task-limit if they may."
            ) from None
        except (BrokenPipeError, EOFError):
            self._running = None
            raise _crash(running.gone()) from None
        except ValueError as error:
            self._end(running)
            raise RunError(
                f"The process of the bundle's programs speaks nonsense, and was ended: {error}."
            ) from None
        except BaseException:  # interrupted in the middle of a message
            self._end(running)
            raise
        if isinstance(reply, Problem):
            running.log()
            if wanted is Ready:
                self._end(running)
            raise _error(reply)
        if not isinstance(reply, wanted):
            self._end(running)
            raise RunError(
                f"The process of the bundle's programs answers '{type(reply).__name__}', and was ended."
            )
        return reply, arrays

    def _end(self, running: "_Running") -> None:
        self._running = None
        running.end()


class _Running:
    """A process that has been started, and which samples it has."""

    def __init__(self, settings: WorkerSettings, layout: Layout) -> None:
        largest = _ARRAYS_A_MODEL * 4 * layout.trained.size + _ROOM
        asks, replies = make_shared(largest), make_shared(largest)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "edge_fl.worker", str(asks), str(replies)],
                cwd=settings.folder,
                env=worker_environment(),
                start_new_session=True,  # Ctrl-C is for the agent alone
                pass_fds=(asks, replies),
                bufsize=0,
                **pipes,  # type: ignore[call-overload]
            )
            memory = Shared(replies), Shared(asks)
        except OSError as error:
            raise RuntimeMissingError(
                f"No process can be started for the bundle's programs: {error.strerror}; free some memory, or start "
                "the device with --in-process."
            ) from error
        finally:
            os.close(asks)
            os.close(replies)
        streams = [stream for stream in (process.stdout, process.stdin, process.stderr) if stream is not None]
        reads, writes, beside = (os.dup(stream.fileno()) for stream in streams)
        for stream in streams:
            stream.close()
        self._pipe: Pipe[Ask, Reply] = Pipe(Ends(reads, writes, *memory, beside), Reply, largest=largest)
        self.held: set[str] = set()
        self._stop = weakref.finalize(self, _stop, process, self._pipe)

    def exchange(self, asks: Sequence[tuple[Ask, _Arrays]], seconds: float) -> tuple[Reply, list[NDArray[Any]]]:
        """Say all and hear one answer; raises as :class:`edge_fl.worker.pipe.Pipe`."""
        self._pipe.within(seconds)
        for ask, arrays in asks:
            self._pipe.say(ask, arrays, answered=not isinstance(ask, Hold | KeepModel))
        return self._pipe.hear()

    def resident(self) -> int:
        """Bytes of memory that it has now (Linux)."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> None:
        """Tell the log what the process wrote by now, for whoever wants to know why something failed."""
        if wrote := self._pipe.drain().decode(errors="replace").strip():
            _log.error("the process of the programs wrote: %s", printable(wrote, LONGEST_SENTENCE))

    def gone(self) -> int:
        """The exit code of a process that has closed its pipes, or minus the number of the signal that ended it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CRASH_SECONDS)
        self.log()
        self._stop()
        return int(self._process.wait())

    def end(self) -> None:
        """End the process."""
        self._stop()


def _stop(process: "subprocess.Popen[bytes]", pipe: Pipe[Ask, Reply]) -> None:
    process.kill()
    process.wait()
    pipe.close()


def _no_outputs() -> RunError:
    return RunError("The bundle's programs give outputs that are none for these inputs.")


def _crash(code: int) -> EdgeFLError:
    """Why a process that is gone has gone; it had no reason to."""
    if code == -signal.SIGKILL:
        return MemoryLimitError(
            "The process of the bundle's programs was killed (SIGKILL), most likely as memory ran out: end something "
            "else, or train a smaller model."
        )
    if code == -signal.SIGSYS:
        return RunError(
            "The bundle's programs asked the system for what no training needs, and their process was ended (SIGSYS)."
        )
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return RunError(f"The process of the bundle's programs ended {how}: a program is broken, or its runtime is.")


def _error(problem: Problem) -> EdgeFLError:
    sentence = printable(problem.sentence, LONGEST_SENTENCE)
    if problem.kind == FrameError.__name__:
        return FrameError(problem.code, sentence)
    return _ERRORS.get(problem.kind, RunError)(sentence)


def _sent(x: Inputs) -> list[NDArray[Any]]:
    """Inputs as arrays that cross: texts are two."""
    return list(packed_texts(x)) if x.dtype == object else [x]


def _arrays(model: Content, state: State) -> list[NDArray[Any]]:
    return [_bytes(model), *(np.asarray(array) for array in state.values())]


def _bytes(content: Content) -> NDArray[np.uint8]:
    return np.frombuffer(content, dtype=np.uint8)
