"""The two tables of support: what each is called, says of itself and tries."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.support.architectures import ARCHITECTURES
from benchmarks.support.case import SupportCase
from benchmarks.support.layers import LAYERS

__all__ = ["SUITES", "Suite"]

_CELLS = (
    "A cell has the largest relative difference of any weight, output or loss, and the size of the train step's "
    "program at full width; or the number of the sentence below that says why there is none. Droppable are the units "
    "that a pattern can leave out, by layer; the output layer never is, and what else stays dense is trained in full."
)


@dataclass(frozen=True)
class Suite:
    """One table.

    Parameters
    ----------
    title, about
        Of its page.
    command
        What writes the page.
    subject
        The head of the first column.
    cases
        Its lines, each of a name that no other has.
    """

    title: str
    about: str
    command: str
    subject: str
    cases: Sequence[SupportCase]

    def case(self, name: str) -> SupportCase:
        """The case of that name."""
        return next(case for case in self.cases if case.name == name)


SUITES = {
    "layers": Suite(
        title="What trains where",
        about="Each line is a tiny model with that layer or operation, exported and proven as any model is: at full "
        f"and half width, over several steps with a new pattern each, against torch in double precision. {_CELLS}",
        command="edge-fl bench support",
        subject="layer or operation",
        cases=LAYERS,
    ),
    "architectures": Suite(
        title="Which public models train where",
        about="Each line is a model as its library writes it, with 10 classes and random weights, exported and proven "
        "as any model is: at full and half width, over several steps with a new pattern each, against torch in double "
        "precision. Images have 64 x 64 pixels, texts 12 tokens, and a batch 6 samples. Convolutional models are as "
        "large as published; transformers have the published structure at a small width and depth. Every trial has a "
        f"process, which ends when its time or its memory does. {_CELLS}",
        command="edge-fl bench support --architectures",
        subject="model",
        cases=ARCHITECTURES,
    ),
}
"""By the name that a trial's process gets."""
