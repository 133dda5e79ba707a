"""What an agent asks of the process of a bundle's programs, and what that answers."""

from typing import Annotated, Literal

import msgspec

from edge_fl.wire.messages import MOST_SCORES, CollectStatistics, Evaluate, Task

__all__ = [
    "LONGEST_SENTENCE",
    "Ask",
    "Collect",
    "Collected",
    "Confinement",
    "Hold",
    "KeepModel",
    "Open",
    "Predict",
    "Predicted",
    "Problem",
    "Ready",
    "Rehearse",
    "Reply",
    "Score",
    "Scored",
    "Timed",
    "Train",
    "Trained",
]

LONGEST_SENTENCE = 4000
"""Characters of a :class:`Problem`: the process cuts to that, and the agent, which does not believe it, again."""
_Word = Annotated[str, msgspec.Meta(max_length=128)]
_Sums = Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)]
_Words = Annotated[tuple[_Word, ...], msgspec.Meta(max_length=256)]


class _Tagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    """A message."""


class Open(_Tagged, frozen=True):
    """Make ready: the first message.

    ``code`` are the owner's own methods, compressors and metrics, as ``file.py:OBJECT`` by absolute paths; ``memory``
    are the bytes that programs may take besides what is there once libraries are loaded.
    """

    agent: int
    client: str
    runtime: str
    bundle: str
    threads: int
    memory: int
    code: tuple[str, ...]


class Hold(_Tagged, frozen=True):
    """Keep these samples: the arrays ``x``, ``y`` and perhaps ``owner``.

    Texts are two arrays in place of ``x`` (:func:`edge_fl.data.tokenizer.packed_texts`).
    """

    part: Literal["train", "test"]
    texts: bool = False


class Train(_Tagged, frozen=True):
    """Train: the arrays are the model's frame as bytes, and the state by these names.

    ``secret`` keys the noise of a private update; None where there is none.
    """

    task: Task
    state: tuple[str, ...]
    secret: bytes | None = None


class Score(_Tagged, frozen=True):
    """Score the model on the samples that are held out; the arrays are its frame, and the state by these names."""

    task: Evaluate
    state: tuple[str, ...]


class Collect(_Tagged, frozen=True):
    """Collect statistics with the model; the arrays are its frame, and the state by these names."""

    task: CollectStatistics
    state: tuple[str, ...]


class Rehearse(_Tagged, frozen=True):
    """Say how long a step takes."""

    task: Task


class KeepModel(_Tagged, frozen=True):
    """Predict by this model from now on; the arrays are its frame, and the state by these names."""

    state: tuple[str, ...]


class Predict(_Tagged, frozen=True):
    """Predict for the inputs in the array; ``width`` says which BatchNorm statistics count, in thousandths.

    Texts are as in :class:`Hold`.
    """

    width: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    texts: bool = False


Ask = Open | Hold | Train | Score | Collect | Rehearse | KeepModel | Predict
"""What an agent says."""


class Confinement(msgspec.Struct, frozen=True):
    """What holds programs: the filter of system calls, Landlock's version (0: none), and bytes of memory."""

    seccomp: bool
    landlock: int
    memory: int


class Ready(_Tagged, frozen=True):
    """The bundle is open, and no program was touched before the process was confined so."""

    confinement: Confinement


class Trained(_Tagged, frozen=True):
    """The arrays are the update's frame and what it withholds, as bytes, and the state by these names."""

    loss: float
    state: _Words


class Scored(_Tagged, frozen=True):
    """As :class:`edge_fl.wire.messages.Evaluated`, and the scores themselves."""

    loss: float
    sums: Annotated[dict[_Word, _Sums], msgspec.Meta(max_length=MOST_SCORES)]
    scores: Annotated[dict[_Word, float], msgspec.Meta(max_length=MOST_SCORES)]


class Collected(_Tagged, frozen=True):
    """The array is the frame as bytes."""


class Timed(_Tagged, frozen=True):
    """Seconds a step."""

    seconds: float


class Predicted(_Tagged, frozen=True):
    """The array has the outputs."""


class Problem(_Tagged, frozen=True):
    """What was asked cannot be done: the error's class, its code where it has one, and its sentence."""

    kind: _Word
    code: _Word
    sentence: Annotated[str, msgspec.Meta(max_length=4000)]


Reply = Ready | Trained | Scored | Collected | Timed | Predicted | Problem
"""What the process answers; nothing to :class:`Hold` and :class:`KeepModel`."""
