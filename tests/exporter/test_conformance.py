"""Every architecture of the zoo, narrowed, in every runtime, under one optimiser each: exported, and so proven.

The optimisers take turns, so that each meets every runtime and every architecture. In `executorch-training`, which
writes recurrent layers out step by step, in `ort-training` and in `torch-eager`, which runs what was traced, only three
that are quick to export are trained, one under each. All other combinations of runtime, architecture and optimiser are
`make test-all`'s, and so are the second of two LSTMs and, in `executorch`, what ResNet-18 has, too.

The proof is the exporter's own (:mod:`exporter.parity`): full, half and random patterns, a new one each step, against
torch in double precision.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import nn

from edge_fl.core.bundle import CLASS_INDEX, Optimizer
from edge_fl.core.errors import ParityError
from edge_fl.core.inputs import Input
from edge_fl.runtimes.base import RUNTIMES
from exporter.decompositions import pooling
from exporter.export import Target, export_bundle
from exporter.limits import ADAM_LIMIT, LIMIT
from exporter.measure.cases import find_case
from exporter.zoo import find_model, model_names
from exporter.zoo.entry import Architecture
from tests.exporter.unseen import GRUClassifier, MobileNet

# Three of the perceptrons are one when narrowed.
ZOO = [name for name in model_names() if name not in ("mnist-mlp", "fashion-mnist-mlp")]
OPTIMIZERS = {
    "sgd": Optimizer(),
    "momentum": Optimizer(momentum=0.9, weight_decay=0.01, clip=1.0),
    "adam": Optimizer(name="adam", weight_decay=0.01),
}
TAKEN = {  # of each runtime what it has that no other model or test shows
    "onnx": ("digits-mlp", "femnist-cnn", "resnet18", "vgg-like"),
    "executorch": ("digits-mlp", "femnist-cnn", "shakespeare-rnn"),
    "executorch_training": ("femnist-cnn",),
    "ort_training": ("cifarnet", "digits-mlp", "femnist-cnn"),
    "torch_eager": ("digits-mlp", "femnist-cnn"),
}
UNSEEN = {
    "mobilenet": Architecture(build=MobileNet, input_shape=(3, 12, 12), classes=5),
    "gru": Architecture(build=GRUClassifier, input_shape=(4, 3), classes=4),
}


def target(what: Architecture, runtime: str, optimizer: Optimizer) -> Target:
    return Target(
        name="narrowed",
        dataset="made-up",
        input=Input(what.input_shape, what.input_dtype),
        target=Input(what.target_shape, "int64"),
        classes=what.classes,
        runtimes=(runtime,),
        loss="sequence_cross_entropy" if what.per_position else "cross_entropy",
        widths=(1000, 500),
        batch=6,
        optimizer=optimizer,
    )


SLOW = {
    ("executorch", "shakespeare-rnn"),
    ("executorch_training", "femnist-cnn"),
    ("onnx", "femnist-cnn"),
    ("onnx", "resnet18"),
    ("onnx", "vgg-like"),
    ("ort_training", "cifarnet"),
    ("ort_training", "femnist-cnn"),
}
"""A recurrent program of ExecuTorch's, and convolutions of other runtimes, are proven in other tests, too."""


def cases() -> Iterator[ParameterSet]:
    for (i, runtime), (j, model) in itertools.product(enumerate(RUNTIMES.names()), enumerate(ZOO)):
        for k, optimizer in enumerate(OPTIMIZERS):
            turn = model in TAKEN[runtime] and (i + j) % len(OPTIMIZERS) == k and (runtime, model) not in SLOW
            yield pytest.param(runtime, model, optimizer, marks=() if turn else pytest.mark.matrix)


@pytest.mark.timeout(900)  # compilers on a busy machine
@pytest.mark.parametrize(("runtime", "model", "optimizer"), list(cases()))
def test_the_zoo_trains_as_torch_trains_it(
    runtime: str, model: str, optimizer: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runtime == "ort_training":
        request.getfixturevalue("ort_training_python")
    torch.manual_seed(0)
    what = find_model(model).narrowed

    bundle = export_bundle(what.build(), target(what, runtime, OPTIMIZERS[optimizer]), tmp_path / "bundle")

    parity = bundle.manifest.parity[runtime]
    assert parity.steps >= 5
    assert 0 < parity.weights <= (ADAM_LIMIT if optimizer == "adam" else LIMIT)
    assert 0 < parity.outputs <= LIMIT


@pytest.mark.timeout(900)
@pytest.mark.matrix
@pytest.mark.parametrize("model", ["mobilenet", "gru"])
def test_models_of_no_zoo_need_no_layout_by_hand(model: str, tmp_path: Path) -> None:
    torch.manual_seed(0)

    bundle = export_bundle(UNSEEN[model].build(), target(UNSEEN[model], "onnx", Optimizer()), tmp_path / "bundle")

    assert len(bundle.layout.blocks) >= 2
    assert bundle.manifest.parity["onnx"].weights <= LIMIT


@pytest.mark.matrix
def test_one_draw_in_which_rounding_finds_another_maximum_refuses_nothing(tmp_path: Path) -> None:
    """In the first draw's third step, float32 in this runtime's order takes another pixel of a pooling window."""
    case = find_case("femnist-cnn", narrowed=False)
    bundle = export_bundle(
        case.build(), case.target("executorch_training", Optimizer(name="adam")), tmp_path / "b"
    )

    assert bundle.manifest.parity["executorch_training"].weights <= ADAM_LIMIT


def test_the_stock_max_pool_gradient_of_executorch_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ExecuTorch 1.5.1's own kernel adds up over calls: the second step is wrong."""
    stock = torch.ops.aten.max_pool2d_with_indices_backward.default
    decomposed = pooling.pooling_decompositions()
    monkeypatch.setattr(
        "exporter.decompositions.pooling_decompositions",
        lambda: {name: rule for name, rule in decomposed.items() if "max_pool2d" not in str(name)},
    )
    assert stock in decomposed
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    wanted = Target(
        "pooled", "made-up", Input((1, 8, 8), "float32"), 3, ("executorch",), CLASS_INDEX, widths=(1000,), batch=6
    )

    with pytest.raises(ParityError, match=r"executorch programs do not compute what torch computes"):
        export_bundle(model, wanted, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
