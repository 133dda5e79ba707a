from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from edge_fl.core.errors import UnsupportedModelError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Block, Layout, Segment
from edge_fl.core.layout import Tensor as Spec
from exporter import groups
from exporter.derive import derive
from exporter.export import Target, export_bundle
from exporter.zoo import lstm, mlp
from tests.exporter import models


def free(length: int) -> tuple[Segment, ...]:
    return (Segment(None, 1, length),)


def of(*blocks: str) -> tuple[Segment, ...]:
    return tuple(Segment(block) for block in blocks)


def axes(layout: Layout, name: str, mode: str) -> tuple[tuple[Segment, ...], ...]:
    tensor = next(tensor for tensor in layout.tensors if tensor.name == name)
    return tensor.rows if mode == "rows" else tensor.units


def test_an_mlps_hidden_layers_are_blocks_and_its_output_layer_is_not() -> None:
    found = derive(mlp.digits(), torch.randn(3, 1, 8, 8))

    assert [(block.name, block.size) for block in found.layout.blocks] == [("1", 32), ("3", 32)]
    assert axes(found.layout, "3.weight", "rows") == (of("3"), free(32))
    assert axes(found.layout, "3.weight", "units") == (of("3"), of("1"))
    assert axes(found.layout, "3.bias", "rows") == (of("3"),)
    assert axes(found.layout, "5.weight", "rows") == (free(10), free(32))
    assert axes(found.layout, "5.weight", "units") == (free(10), of("3"))
    assert axes(found.layout, "5.bias", "units") == (free(10),)
    assert found.scaled == ("1", "3")
    assert "output layer" in found.dense["5"]


def test_the_blocks_of_recurrent_layers_say_so_the_upper_ones_and_those_below() -> None:
    found = derive(lstm.character_rnn(hidden=6), torch.randint(0, 90, (2, 3)))
    assert [(block.name, block.recurrent) for block in found.layout.blocks] == [
        ("embedding", False),
        ("lstm.l0", True),
        ("lstm.l1", True),
    ]


def test_concatenated_layers_give_their_consumer_one_segment_each() -> None:
    layout = derive(models.Concatenation(), torch.randn(3, 6)).layout

    assert axes(layout, "joined.weight", "units") == (of("joined"), of("left", "right"))


def test_layers_that_are_added_share_a_block() -> None:
    found = derive(models.Residual(), torch.randn(3, 6))

    assert [(block.name, block.size) for block in found.layout.blocks] == [("stem", 8), ("inner", 5)]
    assert axes(found.layout, "back.weight", "units") == (of("stem"), of("inner"))
    assert set(found.scaled) == {"stem", "back", "inner"}


def test_a_unit_that_is_concatenated_twice_owns_two_columns() -> None:
    layout = derive(models.BothSigns(), torch.randn(3, 6)).layout

    assert axes(layout, "out.weight", "units") == (free(3), (Segment("hidden", outer=2),))


@pytest.mark.parametrize(
    ("build", "layer", "why"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3)), "0", "does not map 0 to 0"),
        (lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), "0", "'1' normalises"),
        (lambda: nn.Sequential(nn.Linear(6, 5), nn.Softmax(1), nn.Linear(5, 3)), "0", "does not map 0 to 0"),
        (models.Tied, "a", "shared with 'b'"),
        (models.InputResidual, "hidden", "does not run without"),
    ],
)
def test_what_cannot_be_left_out_stays_dense_and_says_why(
    build: Callable[[], nn.Module], layer: str, why: str
) -> None:
    found = derive(build(), torch.randn(3, 6))

    assert found.layout.blocks == ()
    assert why in found.dense[layer]


def test_a_zero_initialised_layer_hides_nothing() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3))
    nn.init.zeros_(model[2].weight)

    assert derive(model, torch.randn(3, 6)).layout.blocks == ()


def test_the_model_is_left_as_it_was() -> None:
    model = models.Residual().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    derive(model, torch.randn(3, 6))

    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class Repeating(nn.Module):
    """Of which torch-pruning counts other units than there are."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 6), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = self.hidden(x).reshape(-1, 1, 2, 3)
        out: torch.Tensor = self.out(nn.functional.interpolate(image, scale_factor=2).flatten(1))
        return out


class Rotating(nn.Module):
    """Halves change places, as in rotary embeddings: torch-pruning follows them in circles."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.hidden(torch.relu(self.first(x)))
        out: torch.Tensor = self.out(torch.relu(h + torch.cat([-h[..., 4:], h[..., :4]], -1)))
        return out


@pytest.mark.parametrize(
    ("model", "blocks", "why"),
    [(Repeating, [], "IndexError"), (Rotating, ["first"], "took more than 30,000 calls")],
)
def test_a_layer_whose_units_cannot_be_followed_stays_dense(
    model: type[nn.Module], blocks: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_LAYER_CALLS", 30_000)
    found = derive(model(), torch.randn(3, 6))
    assert [block.name for block in found.layout.blocks] == blocks
    assert "its units cannot be followed" in found.dense["hidden"]
    assert why in found.dense["hidden"]


@pytest.mark.parametrize("model", [Repeating, Rotating])
def test_a_layer_that_cannot_be_followed_may_be_declared_dense(
    model: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_LAYER_CALLS", 30_000)
    declared = model()
    declared.edge_fl_dense = ("hidden",)
    assert "hidden" in derive(declared, torch.randn(3, 6)).dense


class FixesWhatItKnows(nn.Module):
    """Cuts a concatenation at the length that it has, as GhostNet does: with all units that cuts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(6, 4), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.out(self.inner(torch.cat([h, h], 1)[:, :8]).relu())  # type: ignore[no-any-return]


def test_a_layer_that_no_trace_can_leave_open_is_exported_dense(tmp_path: Path) -> None:
    target = Target("cuts", "made-up", Input((6,), "float32"), 3, ("onnx",), batch=4)
    bundle = export_bundle(FixesWhatItKnows(), target, tmp_path / "bundle")
    assert "first" not in bundle.layout.sizes
    notes = [note for note in bundle.manifest.notes if "dense: a trace that leaves its units open" in note]
    assert any("'first'" in note for note in notes)


class FixesWhatItDeclares(FixesWhatItKnows):
    """Says itself that its units may go, so that nothing of it can be made dense."""

    edge_fl_layout = Layout(
        (Block("first", 4),),
        tuple(
            Spec(name=name, shape=shape, rows=rows, units=units, role="parameter")
            for name, shape, rows, units in (
                ("first.weight", (4, 6), (of("first"), free(6)), (of("first"), free(6))),
                ("first.bias", (4,), (of("first"),), (of("first"),)),
                ("inner.weight", (5, 8), (free(5), free(8)), (free(5), (Segment("first", 2),))),
                ("inner.bias", (5,), (free(5),), (free(5),)),
                ("out.weight", (3, 5), (free(3), free(5)), (free(3), free(5))),
                ("out.bias", (3,), (free(3),), (free(3),)),
            )
        ),
    )


def test_a_declared_layer_that_no_trace_can_leave_open_is_refused(tmp_path: Path) -> None:
    target = Target("cuts", "made-up", Input((6,), "float32"), 3, ("onnx",), batch=4)
    with pytest.raises(UnsupportedModelError, match="cannot be traced with fewer units of first"):
        export_bundle(FixesWhatItDeclares(), target, tmp_path / "bundle")


class Sensitive(nn.Module):
    """A model whose outputs show any rounding, as those of a deep one with BatchNorm do."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.middle, self.out = nn.Linear(6, 300), nn.Linear(300, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(torch.sin(1e6 * self.middle(torch.relu(self.hidden(x)))))
        return outputs


def test_what_rounding_alone_tells_apart_is_the_same() -> None:
    found = derive(Sensitive(), torch.randn(3, 6))

    assert {"hidden", "middle"} == {block.name for block in found.layout.blocks}
