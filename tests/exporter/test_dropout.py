"""A model's own dropout, trained: its masks are inputs of every step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import edge_fl
from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.dropout import masks_of_nothing_dropped
from edge_fl.core.errors import ModelError, UnsupportedModelError
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.runtimes.base import open_runtime
from exporter.accept import Fit, accept
from exporter.dropout_places import find_dropout
from tests.exporter.sources import source

X = torch.zeros(1, 5, 6)


class Pixels(nn.Module):
    """Drops channels, then entries of flattened maps, then units, in torch's three ways of saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Conv2d(1, 6, 3), nn.Dropout2d(0.25)
        self.second, self.out = nn.Linear(6 * 36, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.first(x).relu()).flatten(1)
        x = functional.dropout(x, 0.1, training=self.training)
        x = functional.dropout(self.second(x), training=self.training, inplace=True)
        outputs: Tensor = self.out(x.relu())
        return outputs


class Sequence(nn.Module):
    """Recurrent layers with dropout between them."""

    def __init__(self, *, batch_first: bool, bidirectional: bool = False) -> None:
        super().__init__()
        self.layers = nn.GRU(6, 8, 2, dropout=0.3, batch_first=batch_first, bidirectional=bidirectional)
        self.out = nn.Linear(16 if bidirectional else 8, 4)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x if self.batch_first else x.transpose(0, 1))[0]
        last: Tensor = self.out(outputs[:, -1] if self.batch_first else outputs[-1])
        return last


class Encoder(nn.Module):
    """One layer of torch's own transformer, with the batch first or second."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 16), nn.Linear(16, 4)
        self.layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.layer(x) if self.layer.self_attn.batch_first else self.layer(x.transpose(0, 1)).transpose(0, 1)
        outputs: Tensor = self.out(x.mean(1))
        return outputs


class Windows(nn.Module):
    """Fused attention within windows, which are an axis with the batch, and stochastic depth around it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(1, (-1, 2)).flatten(0, 1).chunk(3, -1)
        p = 0.3 if self.training else 0.0
        x = (
            functional.scaled_dot_product_attention(q, k, v, dropout_p=p)
            .unflatten(0, (x.shape[0], -1))
            .flatten(1, 2)
        )
        if self.training:
            x = x * x.new_empty(x.shape[0], 1, 1).bernoulli_(0.8).div_(0.8)
        outputs: Tensor = self.out(x.mean(1))
        return outputs


def units(model: nn.Module, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], list[object]]]:
    """Of each place the shape of its mask, and of each axis with units their block and order."""
    found = {}
    for place in find_dropout(source(model, shape, 4)):
        assert place is not None
        axes = [[(s.block, s.outer, s.inner) for s in axis if s.block] for axis in place.dropout.mask.units]
        found[place.dropout.mask.name] = place.dropout.mask.shape, axes
    return found


def test_channels_and_flattened_maps_drop_with_their_units() -> None:
    assert units(Pixels(), (1, 8, 8)) == {
        "drop": ((6, 1, 1), [[("first", 1, 1)], [], []]),
        "model": ((216,), [[("first", 1, 36)]]),
        "model#2": ((12,), [[("second", 1, 1)]]),
    }


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_batch_may_be_another_axis(batch_first: bool) -> None:
    assert units(Sequence(batch_first=batch_first), (5, 6)) == {"layers": ((5, 8), [[], [("layers.l0", 1, 1)]])}
    found = units(Encoder(batch_first=batch_first), (5, 6))
    assert found["layer.self_attn"] == ((4, 5, 5), [[("layer.self_attn.heads", 1, 1)], [], []])
    assert found["layer.dropout"] == ((5, 24), [[], [("layer.linear1", 1, 1)]])
    assert found["layer.dropout1"] == found["layer.dropout2"] == ((5, 16), [[], []])


def test_two_blocks_share_an_axis() -> None:
    both = [("layers.l0", 1, 1), ("layers.l0_reverse", 1, 1)]
    assert units(Sequence(batch_first=True, bidirectional=True), (5, 6)) == {"layers": ((5, 16), [[], both])}


def test_windows_are_one_axis_with_the_batch() -> None:
    assert units(Windows(), (4, 6)) == {"model": ((2, 2, 2), [[], [], []]), "model#2": ((1, 1), [[], []])}


class Entangled(nn.Module):
    """Drops what has no axis of samples."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.first, self.out, self.axis = nn.Linear(6, 8), nn.Linear(8, 4), axis

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight if self.axis else functional.dropout(self.first.weight, 0.5, self.training)
        x = functional.linear(x, weight).relu()
        if self.axis:
            shape = x.transpose(0, 1).shape
            x = (
                functional.dropout(x.transpose(0, 1).flatten(0, 1), 0.5, self.training)
                .reshape(shape)
                .transpose(0, 1)
            )
        outputs: Tensor = self.out(x.mean(1))
        return outputs


def test_what_drops_weights_is_refused() -> None:
    with pytest.raises(
        UnsupportedModelError, match="the batch is not an axis of what it drops: export with --no-d"
    ):
        units(Entangled(0), (5, 6))


class Evaluated(nn.Module):
    """Drops in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(functional.dropout(x, 0.5))
        return outputs


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Evaluated(), "in evaluation, too"),
        (nn.Sequential(nn.AlphaDropout(0.1), nn.Linear(6, 4)), "'0' is a AlphaDropout"),
    ],
)
def test_what_no_mask_stands_for_is_refused(model: nn.Module, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        accept(model, Fit(Input((6,), "float32"), (4,), 4))


def exported(model: nn.Module, x: Tensor, root: Path, *runtimes: str, **more: object) -> Bundle:
    torch.manual_seed(0)
    return edge_fl.export(model, x, runtimes=runtimes, widths=[1.0, 0.5], output=root, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("dropout") / "b"
    return exported(Pixels(), torch.zeros(1, 1, 8, 8), root, "onnx", "torch-eager", "executorch")


def test_every_runtime_drops_what_torch_drops(bundle: Bundle) -> None:
    """Held to torch's own draws of Bernoulli's numbers, in double precision, by the export."""
    assert [place.p for place in bundle.manifest.dropout] == [0.25, 0.1, 0.5]
    assert {runtime: parity.weights < 2e-5 for runtime, parity in bundle.manifest.parity.items()} == {
        "onnx": True,
        "torch_eager": True,
        "executorch": True,
    }


def test_a_step_without_a_unit_is_that_of_its_mask(bundle: Bundle) -> None:
    """A mask that leaves out one unit moves none of what hangs on that unit alone."""
    pattern = Pattern.full(bundle.layout)
    kept = Selection.of(pattern, "units").gather(bundle.weights())
    rng = np.random.default_rng(0)
    batch = Batch(rng.standard_normal((20, 1, 8, 8)).astype("f4"), rng.integers(0, 4, 20), np.ones(20, dtype="f4"))
    masks = masks_of_nothing_dropped(bundle.manifest.dropout, pattern, batch=20)
    masks["dropout.model#2"][:, 3] = 0
    step = open_runtime("onnx", bundle).train_step(pattern, 20)
    moved = step(kept, batch, lr=0.1, extra=masks).tensors["second.weight"] != kept["second.weight"]
    assert not moved[3].any()
    assert moved.any(axis=1).sum() == 11


def test_both_trainers_drop_alike_and_again(bundle: Bundle, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((200, 1, 8, 8)).astype("f4"), rng.integers(0, 4, 200)
    runs = [
        edge_fl.simulate(
            bundle, data, method=edge_fl.FedDrop(dropout=0.5), trainer=trainer, clients=4, rounds=2, local_steps=3,
            output=tmp_path / str(number),
        )
        for number, trainer in enumerate(("stacked", "runtime", "stacked"))
    ]  # fmt: skip
    for name, array in runs[0].weights.items():
        np.testing.assert_allclose(array, runs[1].weights[name], atol=1e-5)
        np.testing.assert_array_equal(array, runs[2].weights[name])


@pytest.mark.matrix
@pytest.mark.parametrize("runtime", ["onnx", "executorch", "executorch_training", "ort_training"])
@pytest.mark.parametrize(
    "build", [lambda: Sequence(batch_first=False, bidirectional=True), lambda: Encoder(batch_first=False), Windows]
)
def test_sequences_drop_in_every_runtime(
    runtime: str, build: Callable[[], nn.Module], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runtime == "ort_training":
        request.getfixturevalue("ort_training_python")
    torch.manual_seed(0)
    x = torch.zeros(1, 4, 6)
    found = exported(build(), x, tmp_path / "b", runtime)
    assert found.manifest.dropout
    assert found.manifest.parity[runtime].weights < 2e-5


@pytest.mark.parametrize("variant", ["noise", "distil", "vardrop"])
def test_every_variant_drops(variant: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 4))
    found = exported(model, torch.zeros(1, 6), tmp_path / "b", "torch-eager", variants=[variant])
    (program,) = (p for p in found.manifest.programs["torch_eager"] if p.kind == "step")
    assert "dropout.2" in program.inputs


def test_below_kept_features_nothing_is_dropped(tmp_path: Path) -> None:
    body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4))
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
    model = nn.Sequential(body, head)
    found = exported(model, torch.zeros(1, 6), tmp_path / "b", "onnx", train=["1.*"], cache_features=True)
    assert [(place.mask.name, place.p) for place in found.manifest.dropout] == [("1.2", 0.2)]


def test_a_model_whose_dropout_is_off_has_no_masks(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 4))
    found = exported(model, torch.zeros(1, 6), tmp_path / "b", "torch-eager", dropout=False)
    assert found.manifest.dropout == ()


def test_a_model_that_torch_cannot_train_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Dropout(0.4, inplace=True), nn.Linear(8, 4))
    with pytest.raises(ModelError, match="modified by an inplace operation"):
        exported(model, torch.zeros(1, 6), tmp_path / "b", "torch-eager")


def test_find_dropout_leaves_the_model_as_it_is() -> None:
    found = source(Pixels(), (1, 8, 8), 4)
    before = {name: tensor.clone() for name, tensor in found.module.state_dict().items()}
    find_dropout(replace(found))
    assert all(torch.equal(tensor, before[name]) for name, tensor in found.module.state_dict().items())
