"""Models, optimisers, and the proof that a runtime trains the one as torch does with the other."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from torch import nn

from edge_fl.core.bundle import CLASS_INDEX, Bundle, Optimizer
from edge_fl.core.inputs import Input
from exporter.adapt import adapt
from exporter.derive import derive
from exporter.export import Target, export_bundle
from exporter.losses import find_loss
from exporter.parity import check_parity
from exporter.source import Source
from exporter.steps import STEPS
from tests.exporter import models

WIDTHS = (1000, 500)
BATCH = 6
OPTIMIZERS = {
    "momentum": Optimizer(momentum=0.9, weight_decay=0.01),
    "clipped": Optimizer(momentum=0.9, clip=0.1),
    "adam": Optimizer(name="adam"),
}


@dataclass(frozen=True)
class Model:
    """How to build a model of three classes, and the shape of a sample."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        *[nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(4, 6, 3, stride=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 3)],
    )


def pooled() -> nn.Module:
    return nn.Sequential(
        *[nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()],
        *[nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)],
    )


MODELS = {
    "mlp": Model(mlp, (6,)),
    "activations": Model(models.activations, (6,)),
    "cnn": Model(cnn, (1, 10, 10)),
    "pooled": Model(pooled, (1, 4, 4)),
    "recurrent": Model(models.Recurrent, (6,)),
}


def exported_variants(name: str, runtime: str, root: Path, *variants: str) -> Bundle:
    """The model with these train steps and every part of SGD, proven by the exporter itself."""
    torch.manual_seed(0)
    entry = MODELS[name]
    optimizer = Optimizer(momentum=0.9, weight_decay=0.01, clip=1.0)
    target = Target(
        name,
        "made-up",
        Input(entry.shape, "float32"),
        3,
        (runtime,),
        widths=WIDTHS,
        batch=BATCH,
        variants=variants,
        optimizer=optimizer,
    )
    return export_bundle(entry.build(), target, root)


def exported(name: str, runtime: str, root: Path) -> tuple[Source, Bundle]:
    """The model with plain SGD, proven by the exporter itself; ``source`` is what it was proven with."""
    torch.manual_seed(0)
    entry = MODELS[name]
    model, what = entry.build(), Input(entry.shape, "float32")
    bundle = export_bundle(model, Target(name, "made-up", what, 3, (runtime,), widths=WIDTHS, batch=BATCH), root)
    found = derive(model, torch.randn(3, *entry.shape))
    kept = bundle.manifest.batch_norm
    source = Source(
        module=adapt(model, batch_norm=kept).train(),
        original=model,
        layout=found.layout,
        scaled=found.scaled,
        loss=find_loss("cross_entropy"),
        input=what,
        target=CLASS_INDEX,
        classes=3,
        batch_norm=kept,
    )
    return source, bundle


def prove(source: Source, bundle: Bundle, runtime: str, optimizer: Optimizer, root: Path) -> None:
    """Raise ParityError unless the same files train with another optimiser: they give gradients only."""
    source = replace(source, optimizer=optimizer)
    step = STEPS.find("plain")(source)
    programs = tuple(
        msgspec.structs.replace(program, inputs=step.inputs, outputs=step.outputs)
        if program.kind == "step"
        else program
        for program in bundle.manifest.programs[runtime]
    )
    manifest = msgspec.structs.replace(bundle.manifest, optimizer=optimizer, programs={runtime: programs})
    again = Bundle.save(root, manifest, {name: bundle.read(name) for name in bundle.manifest.files})
    check_parity(source, again, runtime, widths=WIDTHS, batch=BATCH)
