"""Models that were pretrained on one part of real data, and devices with the other part."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.transformer import Decoder
from edge_fl.core.bundle import Input, Optimizer
from edge_fl.data import shakespeare, wikitext_2
from edge_fl.data.registry import Dataset, Samples, load_dataset
from edge_fl.data.sequences import cut_sequences
from exporter.export import Target
from exporter.measure.cases import find_case

__all__ = ["TASKS", "PretrainedTask", "pretrained"]

_WRITERS = 80  # FEMNIST's first, whose pages the CNN is pretrained on
_ROLES = 40  # Shakespeare's that say most
_DECODER = {"width": 64, "heads": 4, "depth": 3}
_LENGTH = 80
_PRETRAINING_BATCH = 64


@dataclass(frozen=True)
class PretrainedTask:
    """A model, what it is pretrained on for ``steps`` of Adam of size ``adam``, and what devices have.

    ``owners`` is how many devices there are, ``head`` and ``adapted`` name the output layer and the layers that
    adapters are put beside, ``lr`` is a step size for each part that is trained, and ``clip`` the largest norm of a
    step's gradients.
    """

    name: str
    about: str
    owners: int
    steps: int
    adam: float
    head: str
    adapted: str
    lr: Mapping[Literal["all", "head", "adapters"], float]
    clip: float | None = None

    def build(self) -> nn.Module:
        """The model with fresh weights, the same every time."""
        torch.manual_seed(0)
        if self.name == "femnist":
            return find_case("femnist-cnn-32-64").build()
        return Decoder(**_DECODER, vocabulary=shakespeare.INFO.classes, length=_LENGTH)

    def target(self, batch: int) -> Target:
        """What it is exported as."""
        info = load_dataset("femnist").info if self.name == "femnist" else shakespeare.INFO
        return Target(
            f"{self.name}-pretrained",
            "",
            Input(info.input_shape, info.input_dtype),
            info.classes,
            ("onnx",),
            target=Input(info.target_shape, "int64"),
            widths=(1000,),
            batch=batch,
            loss=info.loss,
            optimizer=Optimizer(clip=self.clip),
        )

    def pretraining(self) -> Samples:
        """What the model sees before any device has it."""
        if self.name == "femnist":
            samples = load_dataset("femnist").train
            assert samples.owner is not None
            return samples.take(np.flatnonzero(samples.owner < _WRITERS))
        return cut_sequences(_characters(), _LENGTH)

    def devices(self) -> Dataset:
        """What devices have, and what is held out: each owner's, numbered from 0."""
        return _devices(self.name)


TASKS = {
    task.name: task
    for task in (
        PretrainedTask(
            "femnist",
            "FEMNIST: a CNN (two convolutions of 32 and 64 filters of 5 x 5, and an output layer) pretrained on "
            "writers 1 to 80, tuned by the other 25, and scored on their held-out pages; adapters are beside all "
            "three layers, and gradients are clipped to a norm of 1.",
            owners=25,
            steps=1000,
            adam=1e-3,
            head="7.*",
            adapted="0,3,7",
            lr={"all": 0.1, "head": 0.3, "adapters": 0.3},
            clip=1.0,
        ),
        PretrainedTask(
            "shakespeare",
            "Shakespeare: a decoder (3 layers of width 64 with 4 heads, 90 characters) pretrained on the characters of "
            "WikiText-2, tuned by the 40 roles that say most, and scored on their held-out lines, character by "
            "character; adapters are beside q, k, v, o and both dense layers.",
            owners=_ROLES,
            steps=3000,
            adam=3e-3,
            head="head.*",
            adapted="q_proj,k_proj,v_proj,o_proj,fc1,fc2",
            lr={"all": 0.3, "head": 0.3, "adapters": 1.0},
        ),
    )
}
"""By name."""


def pretrained(task: PretrainedTask, folder: Path, report: Callable[[str], None]) -> nn.Module:
    """The pretrained model, its weights from ``folder`` where they are there.

    Raises DataError when the data cannot be had.
    """
    model, file = task.build(), folder / f"{task.name}-pretrained-{task.steps}.safetensors"
    if file.exists():
        model.load_state_dict(safetensors.torch.load_file(file))
        return model
    optimizer = torch.optim.Adam(model.parameters(), lr=task.adam)
    for number, (x, y) in enumerate(_batches(task.pretraining(), task.steps), start=1):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if number % 50 == 0:
            report(f"pretraining, step {number} of {task.steps}, loss {loss.item():.3f}")
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(model.state_dict(), file)
    return model


def _batches(samples: Samples, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        drawn = rng.integers(0, len(samples.y), _PRETRAINING_BATCH)
        yield torch.from_numpy(samples.x[drawn]), torch.from_numpy(samples.y[drawn])


@cache
def _devices(name: str) -> Dataset:
    found = load_dataset(name)
    assert found.train.owner is not None
    if name == "femnist":
        chosen = np.arange(_WRITERS, found.train.owner.max() + 1)
    else:
        chosen = np.sort(np.argsort(-np.bincount(found.train.owner), kind="stable")[:_ROLES])
    return Dataset(found.info, _of(found.train, chosen), _of(found.test, chosen))


def _of(samples: Samples, chosen: NDArray[np.int64]) -> Samples:
    """The samples of ``chosen`` owners, who are numbered anew."""
    assert samples.owner is not None
    own = np.flatnonzero(np.isin(samples.owner, chosen))
    return Samples(samples.x[own], samples.y[own], np.searchsorted(chosen, samples.owner[own]))


def _characters() -> NDArray[np.int64]:
    """WikiText-2's training articles as the tokens of Shakespeare's characters."""
    folder = os.environ.get("EDGE_FL_DATA")
    train, *_ = wikitext_2.texts(Path(folder) if folder else None)
    return shakespeare.tokens_of([train])
