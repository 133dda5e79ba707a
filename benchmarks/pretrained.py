"""Models that were pretrained on one part of real data, and devices with the other part."""

import hashlib
import os
from abc import ABC, abstractmethod
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
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import Optimizer
from edge_fl.core.inputs import Input
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
class PretrainedTask(ABC):
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

    @abstractmethod
    def build(self) -> nn.Module:
        """The model with fresh weights, the same every time."""

    @abstractmethod
    def pretraining(self) -> Samples:
        """What the model sees before any device has it."""

    @abstractmethod
    def devices(self) -> Dataset:
        """What devices have, and what is held out: each owner's, numbered from 0."""

    def target(self, batch: int) -> Target:
        """What it is exported as."""
        info = self.devices().info
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


class _Femnist(PretrainedTask):
    """A CNN that knows 80 writers, for the others."""

    def build(self) -> nn.Module:
        return find_case("femnist-cnn-32-64").build()

    def pretraining(self) -> Samples:
        samples = load_dataset("femnist").train
        assert samples.owner is not None
        return samples.take(np.flatnonzero(samples.owner < _WRITERS))

    def devices(self) -> Dataset:
        return _of("femnist", lambda owner: np.arange(_WRITERS, owner.max() + 1))


class _Shakespeare(PretrainedTask):
    """A decoder of characters that knows an encyclopaedia, for the roles that say most."""

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Decoder(**_DECODER, vocabulary=shakespeare.INFO.classes, length=_LENGTH)

    def pretraining(self) -> Samples:
        return cut_sequences(_characters(), _LENGTH)

    def devices(self) -> Dataset:
        return _of("shakespeare", lambda owner: np.sort(np.argsort(-np.bincount(owner), kind="stable")[:_ROLES]))


TASKS = {
    task.name: task
    for task in (
        _Femnist(
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
        _Shakespeare(
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
    model = task.build()
    made_by = hashlib.sha256(f"{task}".encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    file = folder / f"{task.name}-pretrained-{made_by}.safetensors"
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
    write_atomically(file, safetensors.torch.save(model.state_dict()))
    return model


def _batches(samples: Samples, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        drawn = rng.integers(0, len(samples.y), _PRETRAINING_BATCH)
        yield torch.from_numpy(samples.x[drawn]), torch.from_numpy(samples.y[drawn])


def _of(name: str, choose: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Dataset:
    """A data set of some owners, who are numbered anew."""
    found = _loaded(name)
    assert found.train.owner is not None
    chosen = choose(found.train.owner)
    return Dataset(found.info, _own(found.train, chosen), _own(found.test, chosen))


_loaded = cache(load_dataset)


def _own(samples: Samples, chosen: NDArray[np.int64]) -> Samples:
    assert samples.owner is not None
    own = np.flatnonzero(np.isin(samples.owner, chosen))
    return Samples(samples.x[own], samples.y[own], np.searchsorted(chosen, samples.owner[own]))


def _characters() -> NDArray[np.int64]:
    """WikiText-2's training articles as the tokens of Shakespeare's characters."""
    folder = os.environ.get("EDGE_FL_DATA")
    train, *_ = wikitext_2.texts(Path(folder) if folder else None)
    return shakespeare.tokens_of([train])
