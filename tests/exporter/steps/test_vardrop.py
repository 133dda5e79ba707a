"""The step of variational dropout against the paper's formulas, and in the runtimes."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge_fl.core.bundle import CLASS_INDEX, Bundle, Optimizer
from edge_fl.core.errors import ConfigError, ParityError, UnsupportedModelError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout, Segment
from edge_fl.core.layout import Tensor as Spec
from exporter.adapt import adapt
from exporter.derive import derive
from exporter.export import export_bundle
from exporter.limits import ADAM_LIMIT
from exporter.losses import find_loss
from exporter.source import Source
from exporter.steps import STEPS
from exporter.steps.vardrop import kl_divergence, noisy_outputs
from exporter.target import Target
from tests.exporter import models
from tests.exporter.lower import proving

ADAM = Optimizer(name="adam")


def source(model: nn.Module, *shape: int, optimizer: Optimizer = ADAM) -> Source:
    found = derive(model, torch.zeros(3, *shape))
    return Source(
        module=adapt(model).train(),
        original=model,
        layout=found.layout,
        scaled=found.scaled,
        loss=find_loss("cross_entropy"),
        input=Input(shape, "float32"),
        target=CLASS_INDEX,
        classes=3,
        optimizer=optimizer,
    )


def test_the_divergence_is_the_printed_formula() -> None:
    """Eq. (3): -0.64 sigmoid(1.87 + 1.49 log alpha) + 0.5 log(1 + 1 / alpha)."""
    values = [0.0003, 0.05, 1.0, 3.0, 1000.0]
    printed = [
        -0.64 / (1 + math.exp(-(1.87 + 1.49 * math.log(alpha)))) + 0.5 * math.log(1 + alpha**-1)
        for alpha in values
    ]

    ours = [float(kl_divergence(torch.tensor(alpha, dtype=torch.float64).log())) for alpha in values]

    np.testing.assert_allclose(ours, printed, rtol=1e-12)
    together = kl_divergence(torch.tensor(values, dtype=torch.float64).log().reshape(5, 1))
    np.testing.assert_allclose(together, sum(printed), rtol=1e-12)
    assert printed == sorted(printed, reverse=True)
    assert torch.isfinite(kl_divergence(torch.tensor([-200.0, 200.0])))


LAYERS = {
    "linear": (lambda: nn.Linear(6, 3), (1, 6)),
    "strided": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (1, 2, 3, 3)),
    "grouped": (lambda: nn.Conv2d(2, 4, 2, groups=2, bias=False), (1, 2, 3, 3)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_are_as_widely_spread_as_weights_drawn_from_eq_2_make_them(kind: str) -> None:
    torch.manual_seed(0)
    build, shape = LAYERS[kind]
    layer, x = build(), torch.randn(shape)
    weight, rates = layer.weight.detach(), torch.rand(layer.weight.shape) * 2 - 2
    with torch.no_grad():
        outputs = layer(x)
        drawn = []
        for _ in range(5_000):
            theta = weight + (rates / 2).exp() * weight * torch.randn_like(weight)
            drawn.append(functional_call(layer, {"weight": theta}, (x,)))
        noisy = noisy_outputs(layer, x, outputs, rates=rates, noise=torch.ones_like(outputs))
        calm = noisy_outputs(layer, x, outputs, rates=rates, noise=torch.zeros_like(outputs))

    assert torch.equal(calm, outputs)
    torch.testing.assert_close(noisy - outputs, torch.stack(drawn).std(dim=0), rtol=0.05, atol=1e-3)
    torch.testing.assert_close(outputs, torch.stack(drawn).mean(dim=0), rtol=0.05, atol=0.05)


def test_log_alpha_of_useless_weights_grows_when_training_on_data() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
    known = source(model, 8)
    step = STEPS.find("vardrop")(known)
    values = dict(zip(step.inputs, step.example(known.full, 100), strict=True))
    values.update({f"tensor.{name}": tensor.detach() for name, tensor in model.named_parameters()})
    values.update({n: torch.zeros_like(t) for n, t in values.items() if n.startswith("exp_avg")})
    values.update({n: torch.full_like(t, -4.0) for n, t in values.items() if n.startswith("log_alpha.")})
    values.update(lr=torch.tensor(0.01), kl=torch.tensor(1 / 1000))
    losses = []

    for number in range(1, 801):
        x = torch.randn(100, 8)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()  # of the last six features nothing
        noise = {n: torch.randn_like(t) for n, t in values.items() if n.startswith("output_noise.")}
        values.update(x=x, y=y, number=torch.tensor(float(number)), **noise)
        loss, *new = step.function(*values.values())
        values.update(zip((name.removeprefix("new.") for name in step.outputs[1:]), new, strict=True))
        losses.append(float(loss))

    rates = values["log_alpha.0.weight"]
    used, useless = rates[:, :2].mean(), rates[:, 2:].mean()
    assert np.mean(losses[-50:]) < 0.35
    assert useless > used + 2
    assert useless > 0


@pytest.mark.timeout(900)  # compilers on a busy machine
@pytest.mark.parametrize(
    "runtime",
    [
        *("onnx", "ort_training"),
        *(
            pytest.param(name, marks=pytest.mark.matrix)
            for name in ("torch_eager", "executorch", "executorch_training")
        ),
    ],
)
def test_every_runtime_trains_it_as_torch_does(
    runtime: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runtime == "ort_training":
        request.getfixturevalue("ort_training_python")
    bundle = export(proving.mlp(), (6,), runtime, tmp_path / "bundle")

    assert [outputs.shape for outputs in bundle.manifest.output_noise] == [(8,), (5,), (3,)]
    assert 0 < bundle.manifest.parity[runtime].weights <= ADAM_LIMIT


@pytest.mark.matrix
def test_convolutions_with_tracked_statistics_train_as_in_torch(tmp_path: Path) -> None:
    bundle = export(proving.cnn(), (1, 10, 10), "onnx", tmp_path / "bundle")

    noise = bundle.manifest.output_noise
    assert [(outputs.name, outputs.shape) for outputs in noise] == [
        ("0.weight", (4, 10, 10)),
        ("4.weight", (6, 2, 2)),
        ("8.weight", (3,)),
    ]
    assert [axis[0].block for axis in noise[0].units] == ["0", None, None]


class Mixed(nn.Module):
    """A layer called twice, one of another kind, one over a sequence, and one that takes no batches."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.filters = nn.Linear(6, 6), nn.Conv1d(1, 2, 3)
        self.sequence, self.joined, self.out = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(20, 3)

    def edge_fl_layout(self) -> Layout:
        shapes = {name: tuple(tensor.shape) for name, tensor in self.named_parameters()}
        axes = {name: tuple((Segment(None, inner=n),) for n in shape) for name, shape in shapes.items()}
        return Layout((), tuple(Spec(name, shapes[name], axes[name], axes[name]) for name in shapes))

    def forward(self, x: Tensor) -> Tensor:
        twice = self.twice(self.twice(x).relu()).relu()
        filtered = self.filters(x.unsqueeze(1)).relu().sum(dim=2)
        sequence = self.sequence(x.reshape(-1, 2, 3)).relu().flatten(1)
        joined = self.joined(x.reshape(-1, 3)).relu().reshape(-1, 4)
        out: Tensor = self.out(torch.cat([twice, filtered, sequence, joined, filtered], dim=1))
        return out


@pytest.mark.parametrize("runtime", ["onnx", pytest.param("torch_eager", marks=pytest.mark.matrix)])
@pytest.mark.parametrize(
    ("model", "noisy", "noted"),
    [
        (
            Mixed,
            {"sequence.weight": (2, 3), "out.weight": (3,)},
            {"twice.weight", "filters.weight", "joined.weight"},
        ),
        (models.Tied, {"out.weight": (3,)}, {"a.weight"}),
    ],
)
def test_layers_that_cannot_be_noisy_are_trained_without_and_noted(
    model: type[nn.Module], noisy: dict[str, tuple[int, ...]], noted: set[str], runtime: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    bundle = export(model(), (6,), runtime, tmp_path / "bundle")

    assert {outputs.name: outputs.shape for outputs in bundle.manifest.output_noise} == noisy
    assert {note.split("'")[1] for note in bundle.manifest.notes if "has no dropout rates" in note} == noted


def conv1d() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 6), nn.Flatten())


@pytest.mark.parametrize(
    ("model", "optimizer", "error", "says"),
    [
        (nn.Linear(6, 3), Optimizer(weight_decay=0.1), ConfigError, "'vardrop' knows no weight decay"),
        (conv1d(), ADAM, UnsupportedModelError, "needs a"),
    ],
)
def test_what_it_cannot_train_is_refused(
    model: nn.Module, optimizer: Optimizer, error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        export(model, (6,), "torch_eager", tmp_path / "bundle", optimizer=optimizer)
    assert not (tmp_path / "bundle").exists()


def test_a_step_of_another_divergence_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("exporter.steps.vardrop.kl_divergence", lambda rates: kl_divergence(rates) * 1.02)

    with pytest.raises(ParityError, match=r"log_alpha\."):
        export(proving.mlp(), (6,), "torch_eager", tmp_path / "bundle", optimizer=Optimizer(momentum=0.9))


def export(
    model: nn.Module, shape: tuple[int, ...], runtime: str, root: Path, *, optimizer: Optimizer = ADAM
) -> Bundle:
    target = Target(
        name="noisy",
        dataset="made-up",
        input=Input(shape, "float32"),
        classes=3,
        runtimes=(runtime,),
        widths=proving.WIDTHS,
        batch=proving.BATCH,
        variants=("vardrop",),
        optimizer=optimizer,
    )
    return export_bundle(model, target, root)
