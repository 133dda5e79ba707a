"""Models, and settings, in which a round of the stacked trainer is compared with that of the runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle, Optimizer
from edge_fl.core.inputs import Input
from edge_fl.data.partition import IID, Kind
from edge_fl.runs.config import RunConfig
from exporter.export import Target, export_bundle
from exporter.zoo.mlp import mlp

RUNTIME = TrainerSettings("runtime")


def trained(
    bundle: Bundle, root: Path, trainer: TrainerSettings, kind: Kind = IID, **more
) -> dict[str, np.ndarray]:
    settings = {"method": "fedavg", "parameters": {}, "rounds": 1, "clients_per_round": 7, "local_steps": 9}
    settings |= {"lr": 0.1, "seed": 3, **more}
    config = RunConfig(run="test", batch=20, **settings)
    simulation = Simulation(
        bundle=bundle,
        config=config,
        population=Population(9, tiers=2, kind=kind),
        trainer=trainer,
        root=root,
        observer=Observer(),
    )
    return load_file(simulation.run().weights)


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray], within: float = 1e-5) -> None:
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=0, atol=within, err_msg=name)


# Adam makes a whole step of a change that rounding alone tells from none: its eps is here what FedAdam has.
PARAMETERS = {"vardrop": {"lr": 0.01, "rate_lr": 0.5, "eps": 0.001, "threshold": -4.0}}


class Tied(nn.Module):
    """A product of two parameters: each one's gradient is the other, which the step writes over."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.layer = nn.Linear(64, 10)
        self.factor, self.other = (nn.Parameter(torch.randn(10)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.flat(x)) + self.factor * self.other


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


class Recurrent(nn.Module):
    """A picture's rows in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x.flatten(1, 2))
        return self.out(states[:, -1])


PLAIN, ADAM = Optimizer(), Optimizer("adam", weight_decay=0.01, clip=0.5)
MOMENTUM = Optimizer(momentum=0.9, weight_decay=0.01)
MODELS = {
    "sgd-conv": (convolutional, PLAIN, "plain"),
    "adam-conv": (convolutional, ADAM, "plain"),
    "adam-mlp": (lambda: mlp(inputs=64, hidden=6, classes=10), ADAM, "plain"),
    "momentum-mlp": (lambda: mlp(inputs=64, hidden=6, classes=10), MOMENTUM, "plain"),
    "sgd-tied": (Tied, PLAIN, "plain"),
    "noise-mlp": (lambda: mlp(inputs=64, hidden=6, classes=10), PLAIN, "noise"),
    "per-width-conv": (convolutional, PLAIN, "plain"),
    "sgd-recurrent": (Recurrent, PLAIN, "plain"),
    "distil-conv": (convolutional, MOMENTUM, "distil"),
    "masked-mlp": (lambda: mlp(inputs=64, hidden=6, classes=10), PLAIN, "plain"),
    "vardrop-conv": (convolutional, PLAIN, "vardrop"),
}
SETTINGS = {
    "per-width-conv": {"method": "fjord", "parameters": {"widths": [1000, 500]}},
    "distil-conv": {"method": "fjord+kd", "parameters": {"widths": [1000, 500, 400], "alpha": 0.6}},
    "vardrop-conv": {"method": "vardrop", "parameters": {"server": "average"}, "rounds": 2},
    "sgd-recurrent": {"method": "feddrop", "parameters": {}, "rounds": 1},
    "masked-mlp": {"method": "heterofl", "parameters": {}, "kind": Kind.parse("labels=2")},
}
"""Of those that FedBIAD does not train, or not in a short time."""


def step_bundle(name: str, root: Path) -> Bundle:
    """The model ``name`` of ``MODELS``, for the digits, in both trainers' runtimes."""
    build, optimizer, variant = MODELS[name]
    torch.manual_seed(0)
    target = Target(
        name,
        "digits",
        Input((1, 8, 8), "float32"),
        10,
        ("onnx", "torch_eager"),
        optimizer=optimizer,
        variants=tuple({"plain", variant}),
        batch_norm="per-width" if name in ("per-width-conv", "distil-conv") else "tracked",
        loss="masked_cross_entropy" if name == "masked-mlp" else "cross_entropy",
    )
    return export_bundle(build(), target, root)


def step_settings(name: str) -> dict[str, Any]:
    """What the model ``name`` of ``MODELS`` is trained with."""
    _, optimizer, variant = MODELS[name]
    often = {"variance": 0.01 if variant == "noise" else 0.0, "tau": 1, "tau_in": "steps"}
    fedbiad = {"method": "fedbiad", "parameters": often}
    settings = dict(SETTINGS.get(name, fedbiad))
    if optimizer is ADAM:
        settings["lr"] = 0.003
    return settings
