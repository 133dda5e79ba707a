"""The models that are benchmarked: the zoo's, and sizes that no entry of the zoo has."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from edge_fl.core.batch import Batch
from edge_fl.core.bundle import PLAIN_SGD, Optimizer
from edge_fl.core.errors import ModelError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout
from exporter.accept import example_inputs
from exporter.derive import derive
from exporter.export import Target
from exporter.zoo import find_model
from exporter.zoo import model_names as zoo_names
from exporter.zoo.cifarnet import cifarnet
from exporter.zoo.entry import Architecture, Entry
from exporter.zoo.lstm import word_lstm
from exporter.zoo.mlp import mlp
from exporter.zoo.resnet import resnet18

__all__ = ["BATCH", "WIDTHS", "Case", "case_names", "find_case"]

BATCH = 20
WIDTHS = (1000, 500)
"""Kept shares of each block, in thousandths: full and half."""


@dataclass(frozen=True)
class Case:
    """A model under the name that a benchmark's table gives it, and the data set that goes with it."""

    name: str
    dataset: str
    model: Architecture

    def build(self) -> nn.Module:
        """The model, in training mode, with the same weights every time."""
        torch.manual_seed(0)
        return self.model.build()

    def target(self, runtime: str, optimizer: Optimizer = PLAIN_SGD) -> Target:
        """What to export it as."""
        return Target(
            self.name,
            self.dataset,
            Input(self.model.input_shape, self.model.input_dtype),
            self.model.classes,
            (runtime,),
            target=Input(self.model.target_shape, "int64"),
            widths=WIDTHS,
            batch=BATCH,
            loss="sequence_cross_entropy" if self.model.per_position else "cross_entropy",
            optimizer=optimizer,
        )

    def layout(self) -> Layout:
        """Its blocks and tensors, as an export finds them."""
        return derive(self.build(), example_inputs(self.target("onnx").fit, 3)).layout

    @property
    def normalised(self) -> bool:
        """Whether it has BatchNorm."""
        return any(isinstance(module, _BatchNorm) for module in self.build().modules())

    def batch(self) -> Batch:
        """``BATCH`` random samples: pixels in [0, 1), or tokens."""
        rng = np.random.default_rng(0)
        shape = (BATCH, *self.model.input_shape)
        integers = self.model.input_dtype == "int64"
        x = rng.integers(0, self.model.classes, shape) if integers else rng.random(shape, dtype=np.float32)
        y = rng.integers(0, self.model.classes, (BATCH, *self.model.target_shape))
        return Batch(x, y, np.ones(BATCH, dtype=np.float32))


def case_names() -> list[str]:
    """The models of the zoo and the further ones."""
    return sorted([*zoo_names(), *_further()])


def find_case(name: str, *, narrowed: bool = False) -> Case:
    """Look a model up, at its full size or narrowed; raises ModelError when there is none."""
    if name not in case_names():
        raise ModelError(f"There is no model '{name}' to benchmark; there are {', '.join(case_names())}.")
    entry = _further().get(name) or find_model(name)
    return Case(name, entry.dataset, entry.narrowed if narrowed else entry)


def _further() -> dict[str, Entry]:
    """FedBIAD's language model at the vocabulary of its PTB figures, its perceptrons with the one hidden layer of its
    text, a CNN of the usual FEMNIST size, and CifarNet for colours and ResNet-18 of a quarter of their channels, which
    CPUs train in minutes.
    """
    words = replace(
        find_model("wikitext-2-lstm"), name="ptb-lstm", classes=10_000, build=lambda: word_lstm(vocabulary=10_000)
    )
    cnn = replace(find_model("femnist-cnn"), name="femnist-cnn-32-64", build=lambda: _wide_cnn(32, 64))
    residual = replace(
        find_model("resnet18"), name="resnet18-16", build=lambda: resnet18(channels=(16, 32, 64, 128))
    )
    coloured = replace(
        find_model("cifarnet"),
        name="cifarnet-16",
        dataset="cifar-10",
        build=lambda: cifarnet(inputs=3, channels=(16, 16, 32, 32, 32, 48, 48, 48)),
        input_shape=(3, 32, 32),
        narrowed=Architecture(
            build=lambda: cifarnet(inputs=3, channels=(3, 4, 3)), input_shape=(3, 6, 6), classes=10
        ),
    )
    return {entry.name: entry for entry in (words, *_one_layer(), cnn, coloured, residual)}


def _one_layer() -> tuple[Entry, ...]:
    return tuple(
        replace(
            find_model(f"{dataset}-mlp"),
            name=f"{dataset}-mlp-one-layer",
            build=partial(mlp, inputs=784, hidden=hidden, classes=10, layers=1),
        )
        for dataset, hidden in (("mnist", 128), ("fashion-mnist", 256))
    )


def _wide_cnn(first: int, second: int) -> nn.Module:
    """Two 5 x 5 convolutions that keep the size, each with 2 x 2 pooling, and a dense output layer (cf. LEAF)."""
    return nn.Sequential(
        nn.Conv2d(1, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 7 * 7, 62),
    )
