"""What a model declares of its own layout is taken where it is true, and refused in a sentence where it is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from edge_fl.core.errors import BundleError, EdgeFLError, ModelError, UnsupportedModelError
from edge_fl.core.layout import Block, Layout, Segment
from edge_fl.core.layout import Tensor as Spec
from exporter.derive import derive
from exporter.model_file import load_model
from tests.exporter import models

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


def free(length: int) -> tuple[Segment, ...]:
    return (Segment(None, inner=length),)


H = (Segment("h"),)
WEIGHTS = (
    Spec("first", (5, 6), (H, free(6)), (H, free(6))),
    Spec("second", (3, 5), (free(3), free(5)), (free(3), H)),
)
TRUE = Layout((Block("h", 5),), WEIGHTS)


class Declared(nn.Module):
    """Weights of its own in no layer of torch's, which nothing can be derived from."""

    def __init__(self, layout: object, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(3, 5))
        self.edge_fl_layout, self.activation = layout, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x @ self.first.T) @ self.second.T


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.kept, self.out = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)

    def edge_fl_layout(self) -> Layout:
        tensors = {name: tuple(p.shape) for name, p in self.named_parameters()}
        axes = {name: [tuple(free(n) for n in shape)] * 2 for name, shape in tensors.items()}
        axes["hidden.weight"] = [(H, free(6))] * 2
        axes["hidden.bias"] = [(H,)] * 2
        axes["kept.weight"][1] = (free(4), H)
        return Layout((Block("h", 5),), tuple(Spec(n, shape, *axes[n]) for n, shape in tensors.items()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.kept(self.hidden(x).relu()).relu())
        return out


@pytest.mark.parametrize("given", [TRUE, lambda: TRUE], ids=["attribute", "method"])
def test_a_declared_layout_replaces_derivation(given: object) -> None:
    found = derive(Declared(given), X)

    assert found.layout == TRUE
    assert found.scaled == ()  # the units never leave the module


def test_a_declared_layout_knows_what_is_scaled_and_what_is_dense() -> None:
    found = derive(Linears(), X)

    assert found.scaled == ("hidden",)
    assert found.dense == dict.fromkeys(("kept", "out"), "the model's own layout says so")


@pytest.mark.parametrize(
    ("example", "x", "blocks"),
    [
        ("gated_mlp", torch.randn(3, 1, 8, 8), [("units", 24)]),
        ("character_rnn", torch.randint(0, 90, (2, 5)), [("lstm.l0", 128), ("lstm.l1", 128)]),
    ],
)
def test_an_examples_layout_is_as_it_declares(
    example: str, x: torch.Tensor, blocks: list[tuple[str, int]]
) -> None:
    model = load_model(str(Path(__file__).parents[2] / "examples" / f"{example}.py") + ":build")
    found = derive(model, x)

    assert [(block.name, block.size) for block in found.layout.blocks] == blocks


OUTPUT = (WEIGHTS[0], Spec("second", (3, 5), ((Segment("o"),), free(5)), ((Segment("o"),), H)))
ROWS_ONLY = (WEIGHTS[0], Spec("second", (3, 5), (free(3), free(5)), (free(3), free(5))))


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda: Declared(TRUE, torch.sigmoid), UnsupportedModelError, "on block 'h': zeroing its rows is not"),
        (
            lambda: Declared(Layout((Block("h", 5), Block("o", 3)), OUTPUT)),
            UnsupportedModelError,
            "block 'o': it is",
        ),
        (lambda: Declared(Layout((Block("h", 5),), ROWS_ONLY)), UnsupportedModelError, "does not run without"),
        (
            lambda: Declared(Layout((Block("h", 5),), WEIGHTS[:1])),
            ModelError,
            "'second' as nothing and the model as",
        ),
        (lambda: Declared("h"), ModelError, "of type 'str', not an edge_fl Layout"),
        (lambda: Declared(lambda: 1 / 0), ModelError, "raised ZeroDivisionError"),
        (lambda: Declared(lambda: Layout((Block("h", 0),), ())), BundleError, "a block has no unit"),
    ],
)
def test_a_layout_that_is_not_the_models_is_refused(
    build: Callable[[], nn.Module], error: type[EdgeFLError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        derive(build(), X)
    assert "\n" not in str(caught.value)


def with_dense(model: nn.Module, names: object) -> nn.Module:
    model.edge_fl_dense = names  # type: ignore[assignment]
    return model


def test_a_layer_stays_dense_because_the_model_says_so() -> None:
    found = derive(with_dense(models.Residual(), ("inner",)), X)

    assert [block.name for block in found.layout.blocks] == ["stem"]
    assert found.dense["inner"] == "the model says so"


def test_a_module_stands_for_all_that_is_in_it() -> None:
    hidden = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU())
    found = derive(with_dense(nn.Sequential(hidden, nn.Linear(4, 3)), ["0"]), X)

    assert found.layout.blocks == ()


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (
            lambda: with_dense(models.Residual(), ("hidden",)),
            UnsupportedModelError,
            "names 'hidden'.* there are 'stem'",
        ),
        (lambda: with_dense(models.Residual(), "inner"), ModelError, "must be a tuple of the names"),
        (lambda: with_dense(models.Residual(), 3), ModelError, "must be a tuple of the names"),
        (lambda: with_dense(Linears(), ("kept",)), ModelError, "has both"),
    ],
)
def test_names_that_are_no_layers_are_refused(
    build: Callable[[], nn.Module], error: type[EdgeFLError], says: str
) -> None:
    with pytest.raises(error, match=says):
        derive(build(), X)
