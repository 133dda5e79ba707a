"""A factor on units of recurrent layers: whoever reads a unit gets it, and a state is not multiplied twice."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edge_fl
from edge_fl.core.layout import Block, Layout, Segment
from edge_fl.core.layout import Tensor as Spec
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from exporter.forward import training_forward
from exporter.recurrent.states import LayerStates
from exporter.scaled import same_factor, scaled_parameters
from tests.exporter.sources import source

HIDDEN = 6


class Reads(nn.Module):
    """The outputs of recurrent layers, or last states of the layers and directions ``states``."""

    def __init__(
        self, kind: type[nn.RNNBase], layers: int, *states: int, both_ways: bool = False, dense: str | None = None
    ) -> None:
        super().__init__()
        self.states = states
        self.layers = kind(3, HIDDEN, layers, batch_first=True, bidirectional=both_ways)
        read = HIDDEN * (len(states) or 1 + both_ways)
        self.out = nn.Linear(read, 4)
        if dense is not None:
            self.edge_fl_dense = [dense]

    def forward(self, x: Tensor) -> Tensor:
        outputs, last = self.layers(x)
        h = last[0] if isinstance(last, tuple) else last  # the layers are others in a trace
        read = torch.cat([h[number, :, :] for number in self.states], 1) if self.states else outputs.mean(1)
        found: Tensor = self.out(read)
        return found


class Twofold(nn.Module):
    """Outputs that are normalised, and a state that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.GRU(3, HIDDEN, batch_first=True), nn.BatchNorm1d(HIDDEN)
        self.out, self.out2 = nn.Linear(HIDDEN, 4), nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs, last = self.layers(x)
        found: Tensor = self.out(self.norm(outputs.mean(1))) + self.out2(last[-1])
        return found


class OneNormalised(nn.Module):
    """The states of two layers or directions, one of them normalised."""

    def __init__(self, layers: int, normal: int, plain: int) -> None:
        super().__init__()
        self.layers = nn.GRU(3, HIDDEN, layers, batch_first=True, bidirectional=layers == 1)
        self.normal, self.plain = normal, plain
        self.norm, self.out, self.out2 = nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, 4), nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.layers(x)
        found: Tensor = self.out(self.norm(h[self.normal])) + self.out2(h[self.plain])
        return found


class Steps(nn.Module):
    """A cell, called in a loop of the model's."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell, self.out = kind(3, HIDDEN), nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        outputs: Tensor = self.out(state[0] if isinstance(state, tuple) else state)
        return outputs


class Handed(nn.Module):
    """The state of one layer is where another begins, step by step."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.first, self.second = kind(3, HIDDEN, batch_first=True), kind(3, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.first(x)
        for step in range(2):
            outputs, state = self.second(x[:, step : step + 1], state)
        found: Tensor = self.out(outputs[:, -1])
        return found


def declared(model: nn.Module) -> nn.Module:
    """The model with a layout that drops the units of its cell, or of both of its layers together."""
    free, tensors = lambda length: (Segment(None, 1, length),), []
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        rows = (free(shape[0]) if "out" in name else (Segment("h", shape[0] // HIDDEN),), *map(free, shape[1:]))
        reads = parameter.ndim == 2 and ("out" in name or "weight_hh" in name)
        tensors.append(Spec(name, shape, rows, (rows[0], (Segment("h"),)) if reads else rows))
    model.edge_fl_layout = Layout((Block("h", HIDDEN, recurrent=True),), tuple(tensors))  # type: ignore[assignment]
    return model


MODELS: dict[str, nn.Module] = {
    **{f"{kind.__name__} outputs": Reads(kind, 1) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
    **{f"{kind.__name__} state": Reads(kind, 2, -1) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
    "both ways": Reads(nn.GRU, 2, both_ways=True),
    **{f"{kind.__name__} states both ways": Reads(kind, 2, -2, -1, both_ways=True) for kind in (nn.LSTM, nn.GRU)},
    "states of all layers": Reads(nn.LSTM, 2, 0, 1, 2, 3, both_ways=True),
    "one direction's state": Reads(nn.GRU, 1, -1, both_ways=True),
    **{kind.__name__: declared(Steps(kind)) for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)},
    **{f"{kind.__name__} handed on": declared(Handed(kind)) for kind in (nn.LSTM, nn.GRU)},
}


PARTLY_DENSE: dict[str, nn.Module] = {
    "one direction dense": Reads(nn.LSTM, 1, both_ways=True, dense="layers.l0"),
    "states of one direction dense": Reads(nn.GRU, 1, -2, -1, both_ways=True, dense="layers.l0_reverse"),
    "a lower layer dense": Reads(nn.LSTM, 2, 0, 1, dense="layers.l0"),
    "an upper layer dense": Reads(nn.GRU, 2, 0, 1, dense="layers.l1"),
}


def with_twins(model: nn.Module) -> nn.Module:
    """Every unit of the upper half becomes what its twin in the lower half is; its readers' columns, too."""
    model, half = copy.deepcopy(model), HIDDEN // 2
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "out" not in name:  # rows of gates
                rows = parameter.view(-1, HIDDEN, *parameter.shape[1:])
                rows[:, half:] = rows[:, :half]
            if parameter.ndim == 2 and parameter.shape[1] % HIDDEN == 0:
                columns = parameter.view(parameter.shape[0], -1, HIDDEN)
                columns[..., half:] = columns[..., :half]
    return model


@pytest.mark.parametrize("name", MODELS | PARTLY_DENSE)
def test_half_of_the_units_times_two_are_all_of_them(name: str) -> None:
    """With each unit twice in the model, dropping one of the two and doubling the other changes nothing."""
    made = source(with_twins((MODELS | PARTLY_DENSE)[name]), (5, 3), 4)
    assert {block.size for block in made.layout.blocks} == {HIDDEN}
    pattern = Pattern(made.layout, np.tile(np.arange(HIDDEN) < HIDDEN // 2, len(made.layout.blocks)))
    weights = {name: parameter.detach().numpy() for name, parameter in made.original.named_parameters()}
    kept = {name: torch.from_numpy(each) for name, each in Selection.of(pattern, "units").gather(weights).items()}
    x = torch.randn(3, 5, 3)

    outputs, _ = training_forward(made, kept, {"x": x, "scale": torch.tensor(2.0)})

    torch.testing.assert_close(outputs, made.original(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_narrow_model_predicts_with_the_factor_that_it_trained_with(name: str) -> None:
    made = source(MODELS[name], (5, 3), 4)
    names = scaled_parameters(made.original, made.layout, made.scaled, made.inner)
    assert {*made.inner, "out.weight"} <= {*names}
    assert same_factor(made, names, torch.randn(3, 5, 3))


class Rectified(nn.Module):
    """What reads the outputs is no linear layer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.out = nn.GRU(3, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(torch.tanh(self.layers(x)[0][:, -1]))
        return outputs


@pytest.mark.parametrize("model", [Rectified(), *PARTLY_DENSE.values()])
def test_no_factor_where_a_layers_readers_do_not_show_it(model: nn.Module) -> None:
    made = source(model, (5, 3), 4)
    names = scaled_parameters(made.original, made.layout, made.scaled, made.inner)
    assert not same_factor(made, names, torch.randn(3, 5, 3))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("LSTM state", marks=pytest.mark.matrix),
        pytest.param("GRUCell", marks=pytest.mark.matrix),
        pytest.param("GRU handed on", marks=pytest.mark.matrix),
        "states of one direction dense",
    ],
)
@pytest.mark.parametrize("runtime", ["onnx", pytest.param("torch-eager", marks=pytest.mark.matrix)])
def test_programs_agree_with_a_reference_that_scales_by_itself(name: str, runtime: str, tmp_path: Path) -> None:
    bundle = edge_fl.export(
        (MODELS | PARTLY_DENSE)[name],
        torch.randn(3, 5, 3),
        runtimes=[runtime],
        widths=[1.0, 0.5],
        output=tmp_path,
    )
    assert all(parity.weights < 1e-4 for parity in bundle.manifest.parity.values())
    assert bool(bundle.manifest.scaled) == (name in MODELS)


@pytest.mark.parametrize("trained", ["layers.*_l1", pytest.param("layers.*_l0", marks=pytest.mark.matrix)])
def test_a_frozen_layer_gets_no_factor(trained: str, tmp_path: Path) -> None:
    bundle = edge_fl.export(
        Reads(nn.GRU, 2, 0, 1), torch.randn(3, 5, 3), train=[trained, "out.*"], runtimes=["onnx"], output=tmp_path
    )
    assert [block.name for block in bundle.layout.blocks] == ["layers." + trained[-2:]]
    assert bundle.manifest.parity["onnx"].weights < 1e-4


def test_states_take_every_index_of_a_tensor() -> None:
    stacked = torch.randn(4, 3, HIDDEN)
    states = LayerStates(list(stacked))
    for index in (
        -1,
        (1,),
        (-2, ...),
        (0, slice(None), 2),
        [0, 2],
        slice(1, 3),
        (slice(None), 0),
        torch.tensor(2),
        True,
        (True, 0),
    ):
        torch.testing.assert_close(states[index], stacked[index])


@pytest.mark.parametrize("which", [(1, -2, -1), (2, -1, 0), (2, 0, 1)])
def test_a_norm_behind_one_layer_leaves_the_others_their_factor(which: tuple[int, int, int]) -> None:
    assert {*source(OneNormalised(*which), (5, 3), 4).scaled} == {"layers", "norm"}


def test_a_state_that_no_norm_is_in_front_of_gets_the_factor() -> None:
    assert {*source(Twofold(), (5, 3), 4).scaled} == {"layers", "norm"}
