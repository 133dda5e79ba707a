"""A model's own dropout, trained: its masks are inputs of every step."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

import edge_fl
from edge_fl.cli.main import app
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


class Branches(nn.Module):
    """The outputs of many layers are dropped as one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 3 + n) for n in range(count))
        self.out = nn.Linear(sum(3 + n for n in range(count)), 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = [layer(x).relu() for layer in reversed(self.layers)]
        outputs: Tensor = self.out(functional.dropout(torch.cat(parts, 1), 0.2, self.training))
        return outputs


def test_a_concatenation_of_many_layers_is_laid_out() -> None:
    """Twelve could stand in 479 million orders."""
    found = units(Branches(12), (6,))["model"]
    blocks = [(f"layers.{n}", 1, 1) for n in reversed(range(12))]
    assert found == ((sum(range(3, 15)),), [blocks])


class TextCnn(nn.Module):
    """Kim's: of every filter the largest output over the words, which a ReLU hides where it is below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 12)
        self.filters = nn.ModuleList(nn.Conv1d(12, 6, size) for size in (2, 3, 4))
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x).transpose(1, 2)
        largest = [layer(words).relu().amax(2) for layer in self.filters]
        return self.out(self.drop(torch.cat(largest, 1)))  # type: ignore[no-any-return]


def test_units_that_a_relu_could_hide_are_found_in_tokens_that_differ(tmp_path: Path) -> None:
    (place,) = exported(
        TextCnn(), torch.zeros(2, 8, dtype=torch.int64), tmp_path / "b", "torch-eager"
    ).manifest.dropout
    assert [segment.block for segment in place.mask.units[0]] == ["filters.0", "filters.1", "filters.2"]


class Swapped(nn.Module):
    """Drops what has places before samples, in one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.dropout(self.first(x).relu().transpose(0, 1).flatten(0, 1), 0.5, self.training)
        outputs: Tensor = self.out(x.unflatten(0, (5, -1)).mean(0))
        return outputs


def test_places_may_come_before_samples() -> None:
    assert units(Swapped(), (5, 6)) == {"model": ((5, 8), [[], [("first", 1, 1)]])}
    (place,) = find_dropout(source(Swapped(), (5, 6), 4))
    assert place is not None
    mask = torch.arange(3 * 5 * 8).reshape(3, 5, 8)
    assert torch.equal(place.arranged(mask), mask.transpose(0, 1).reshape(15, 8))


class OfWeights(nn.Module):
    """Drops what has no axis of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        weight = functional.dropout(self.first.weight, 0.5, self.training)
        outputs: Tensor = self.out(functional.linear(x, weight).relu())
        return outputs


def test_what_drops_weights_is_refused_and_trains_without(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="what it drops has no axis of samples: export with --no-d"):
        units(OfWeights(), (6,))
    found = exported(OfWeights(), torch.zeros(1, 6), tmp_path / "b", "torch-eager", dropout=False)
    assert found.manifest.dropout == ()


class Odd(nn.Module):
    """Draws in ways that only some models do."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.out, self.draw = nn.Linear(6, 8), nn.Linear(8, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        outputs: Tensor = self.out(self.draw(x) if self.training else x)
        return outputs


def statement(x: Tensor) -> Tensor:
    noise = torch.empty_like(x)
    noise.bernoulli_(0.75)
    return x * noise / 0.75


@pytest.mark.parametrize("runtime", ["onnx", pytest.param("torch-eager", marks=pytest.mark.matrix)])
@pytest.mark.parametrize(
    ("draw", "places"),
    [
        (statement, 1),
        (lambda x: x * x.new_empty(len(x.shape) and x.shape[0], 1).bernoulli_(np.float64(0.8)) / 0.8, 1),
        (lambda x: functional.dropout(x, np.linspace(0, 0.3, 3)[1]), 1),
        (lambda x: functional.dropout1d(x, 0.5), 1),
        (lambda x: functional.dropout(x, 1.0) + x, 0),
        (lambda x: functional.dropout(input=x, p=0.2, training=True), 1),
    ],
    ids=["statement", "numpy share", "numpy", "one axis", "all", "keywords"],
)
def test_other_ways_of_drawing(
    draw: Callable[[Tensor], Tensor], places: int, runtime: str, tmp_path: Path
) -> None:
    found = exported(Odd(draw), torch.zeros(1, 6), tmp_path / "b", runtime)
    assert len(found.manifest.dropout) == places
    assert found.manifest.parity[runtime.replace("-", "_")].weights < 1e-5


def test_names_are_each_its_own() -> None:
    names = [place.dropout.mask.name for place in find_dropout(source(Both(), (6,), 4)) if place is not None]
    assert names == ["model", "model#2", "model#3"]


class Both(nn.Module):
    """Drops itself, and has a part called ``model`` that drops twice."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Odd(lambda x: functional.dropout(functional.dropout(x, 0.2), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(functional.dropout(x, 0.1, self.training))  # type: ignore[no-any-return]


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
        accept(model, Fit(Input((6,), "float32"), ((4,),), 4))


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
    assert moved.any(axis=1).sum() >= 8


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


@pytest.mark.parametrize("above", [True, False])
def test_below_kept_features_nothing_is_dropped(above: bool, tmp_path: Path) -> None:
    body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4))
    head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2 if above else 0.0), nn.Linear(8, 4))
    model = nn.Sequential(body, head)
    found = exported(model, torch.zeros(1, 6), tmp_path / "b", "onnx", train=["1.*"], cache_features=True)
    assert [(place.mask.name, place.p) for place in found.manifest.dropout] == ([("1.2", 0.2)] if above else [])


def test_a_model_whose_dropout_is_off_has_no_masks(tmp_path: Path) -> None:
    """Written as a function, too."""
    model = Odd(lambda x: functional.dropout(functional.alpha_dropout(x, 0.3, training=True), 0.3))
    found = exported(model, torch.zeros(1, 6), tmp_path / "b", "torch-eager", dropout=False)
    assert found.manifest.dropout == ()
    with pytest.raises(UnsupportedModelError, match="No program draws alpha dropout"):
        exported(model, torch.zeros(1, 6), tmp_path / "c", "torch-eager")


def test_a_model_that_torch_cannot_train_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Dropout(0.4, inplace=True), nn.Linear(8, 4))
    with pytest.raises(ModelError, match="modified by an inplace operation"):
        exported(model, torch.zeros(1, 6), tmp_path / "b", "torch-eager")


def test_find_dropout_leaves_the_model_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 4))
    found = source(model, (6,), 4)
    before = {name: tensor.clone() for name, tensor in found.module.state_dict().items()}
    assert len(find_dropout(found)) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in found.module.state_dict().items())
    assert found.module.training
    assert not any(module._forward_hooks for module in found.module.modules())
    assert not any(getattr(module, "seen", None) for module in found.module.modules())


def test_a_model_that_gives_nan_is_not_called_random() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    model[1].running_var.fill_(-1)  # type: ignore[union-attr, operator]
    accept(model, Fit(Input((6,), "float32"), ((4,),), 4))


def test_a_packed_sequence_has_its_own_words() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            _, h = self.rnn(nn.utils.rnn.pack_padded_sequence(x, [5] * len(x), batch_first=True))
            return self.out(h[0])  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedModelError, match="packed sequence: pad"):
        accept(Packed(), Fit(Input((5, 6), "float32"), ((4,),), 4))


def test_a_model_in_evaluation_is_trained(tmp_path: Path) -> None:
    """As those of from_pretrained are."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 4)).eval()
    found = exported(model, torch.zeros(1, 6), tmp_path / "b", "torch-eager")
    assert [place.p for place in found.manifest.dropout] == [0.4]
    assert not model.training


def test_a_bundle_says_where_the_model_drops(bundle: Bundle) -> None:
    told = CliRunner().invoke(app, ["inspect", str(bundle.root)])
    assert "own dropout trains in 3 places: drop 0.25, model 0.1, model#2 0.5." in told.output.replace("\n", " ")
    found = json.loads(CliRunner().invoke(app, ["inspect", str(bundle.root), "--json"]).output)
    assert found["dropout"] == {"drop": 0.25, "model": 0.1, "model#2": 0.5}
