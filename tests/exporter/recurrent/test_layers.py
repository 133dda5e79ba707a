"""The replacements against torch's own modules, in float64, and against themselves with units left out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge_fl.core.errors import UnsupportedModelError
from exporter.recurrent import recurrent_axes, replace_recurrent, unrolled

LAYERS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}
CELLS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
    "tanh": nn.RNNCell,
    "relu": lambda *a, **k: nn.RNNCell(*a, nonlinearity="relu", **k),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "batch_first": True},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True},
]


def _tensors(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    if isinstance(outputs, tuple):
        return [tensor for item in outputs for tensor in _tensors(item)]
    return [outputs.stacked()]


def _gradients(module: nn.Module, *inputs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of an uneven sum of them by every parameter and input."""
    outputs = _tensors(module(*inputs))
    generator = torch.Generator().manual_seed(1)
    loss = sum((o * torch.randn(o.shape, generator=generator, dtype=o.dtype)).sum() for o in outputs)
    leaves = [*module.parameters(), *(t for i in inputs for t in _tensors(i))]
    assert isinstance(loss, Tensor)
    return outputs, list(torch.autograd.grad(loss, leaves))


def _same(module: nn.Module, *inputs: Any) -> None:
    replaced = replace_recurrent(module)
    assert list(replaced.state_dict()) == list(module.state_dict())
    for ours, torchs in zip(_gradients(replaced, *inputs), _gradients(module, *inputs), strict=True):
        torch.testing.assert_close(ours, torchs)


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_give_torchs_outputs_and_gradients(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = LAYERS[kind](3, 4, **options).double()
    _same(module, _leaf(5, 2, 3))
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    batch = 5 if options.get("batch_first") else 2
    state = (_leaf(layers, batch, 4), _leaf(layers, batch, 4)) if kind == "lstm" else _leaf(layers, batch, 4)
    _same(module, _leaf(5, 2, 3), state)
    _same(module, _leaf(5, 3))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_give_torchs_outputs_and_gradients(kind: str, bias: bool) -> None:
    torch.manual_seed(0)
    module = CELLS[kind](3, 4, bias=bias).double()
    state = (_leaf(2, 4), _leaf(2, 4)) if kind == "lstm" else _leaf(2, 4)
    _same(module, _leaf(2, 3), state)
    _same(module, _leaf(2, 3))
    _same(module, _leaf(3))


def _left_out(module: nn.Module, keep: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights with the rows of all other units zero, and without these units."""
    zeroed = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    stays: dict[tuple[str, int], Tensor] = {}
    for axes in recurrent_axes(module, ""):
        for key, owners in axes.owners.items():
            unit = torch.from_numpy(owners)
            kept = torch.isin(unit, keep[axes.name]) | (unit < 0)
            stays[key] = stays.get(key, torch.ones_like(kept)) & kept
            if key in axes.own:
                zeroed[key[0]][~kept] = 0
    compact = dict(zeroed)
    for (name, axis), kept in stays.items():
        compact[name] = compact[name].index_select(axis, kept.nonzero().squeeze(1))
    return zeroed, compact


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_without_units_is_the_layer_with_their_rows_zero(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = replace_recurrent(LAYERS[kind](3, 6, **options).double())
    axes = recurrent_axes(module, "")
    keep = {block.name: torch.tensor([0, 2, 3, 5][: 2 + number % 3]) for number, block in enumerate(axes)}
    zeroed, compact = _left_out(module, keep)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    full, *_ = functional_call(module, zeroed, (x,))
    less, last = functional_call(module, compact, (x,))
    top = [block for block in axes if block.outputs is not None]
    kept = torch.cat([keep[block.name] + block.outputs.start for block in top if block.outputs])
    torch.testing.assert_close(less, full[..., kept])
    dropped = torch.ones(full.shape[-1], dtype=torch.bool)
    dropped[kept] = False
    assert (full[..., dropped] == 0).all()
    hidden = last[0] if kind == "lstm" else last
    assert [state.shape[-1] for state in hidden] == [len(keep[block.name]) for block in axes]


@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_without_units_is_the_cell_with_their_rows_zero(kind: str) -> None:
    torch.manual_seed(0)
    module = replace_recurrent(CELLS[kind](3, 6).double())
    keep = torch.tensor([1, 2, 5])
    zeroed, compact = _left_out(module, {"": keep})
    x = torch.randn(2, 3, dtype=torch.float64)
    full, less = None, None
    for _ in range(3):
        full, less = functional_call(module, zeroed, (x, full)), functional_call(module, compact, (x, less))
    for ours, all_units in zip(_tensors(less), _tensors(full), strict=True):
        torch.testing.assert_close(ours, all_units[:, keep])
        assert (all_units[:, [0, 3, 4]] == 0).all()


def test_the_gradients_of_what_is_kept_are_those_of_the_full_layer() -> None:
    torch.manual_seed(0)
    module = replace_recurrent(nn.LSTM(3, 6, 2).double())
    keep = {"l0": torch.tensor([0, 2, 3]), "l1": torch.tensor([1, 5])}
    zeroed, compact = _left_out(module, keep)
    x = torch.randn(5, 2, 3, dtype=torch.float64)

    def gradient(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: tensor.requires_grad_() for name, tensor in weights.items()}
        loss = functional_call(module, leaves, (x,))[0].square().sum()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    full, less = gradient(zeroed), gradient(compact)
    rows = torch.cat([keep["l1"] + 6 * gate for gate in range(4)])
    torch.testing.assert_close(less["weight_ih_l1"], full["weight_ih_l1"][rows][:, keep["l0"]])
    torch.testing.assert_close(less["bias_hh_l1"], full["bias_hh_l1"][rows])


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_written_out_loops_compute_the_same(kind: str, derived: bool) -> None:
    torch.manual_seed(0)
    module = replace_recurrent(LAYERS[kind](3, 4).double())
    x = _leaf(5, 2, 3)
    looped = _gradients(module, x)
    with unrolled(derived=derived):
        written = _gradients(module, x)
        own = type(module(x)[0].grad_fn).__name__
    torch.testing.assert_close(written, looped)
    assert (own == "StackBackward0") == derived


def test_last_states_act_as_torchs_where_layers_keep_as_many() -> None:
    module = replace_recurrent(nn.GRU(3, 4, 2))
    _, last = module(torch.randn(5, 2, 3))
    assert last.shape == (2, 2, 4)
    torch.testing.assert_close(torch.cat([last, last], 0)[:2], torch.stack(list(last)))
    torch.testing.assert_close(last[-1:], last[-1].unsqueeze(0))
    torch.testing.assert_close(last.transpose(0, 1)[:, 1], last[1])


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.GRU(3, 3)
        self.b = self.a
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.GRUCell(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(self.b(self.a(x)[0])[0][-1])
        return outputs


def test_a_module_in_two_places_stays_one_and_the_model_is_left_alone() -> None:
    torch.manual_seed(0)
    model = _Twice()
    replaced = replace_recurrent(model)
    assert replaced.a is replaced.b
    assert isinstance(model.a, nn.GRU)
    assert list(replaced.state_dict()) == list(model.state_dict())
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(replaced(x), model(x))
    with torch.no_grad():
        next(replaced.parameters()).add_(1)
    assert not torch.equal(next(replaced.parameters()), next(model.parameters()))


def test_what_has_no_replacement_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'0' is a LSTM with proj_size=2"):
        replace_recurrent(nn.Sequential(nn.LSTM(3, 4, proj_size=2)))


def test_states_that_fit_no_kept_units_are_refused() -> None:
    module = replace_recurrent(nn.LSTM(3, 6, 2))
    _, compact = _left_out(module, {"l0": torch.arange(4), "l1": torch.arange(3)})
    x = torch.randn(5, 2, 3)
    with pytest.raises(UnsupportedModelError, match="keeps 4 units is given a first state of 6"):
        functional_call(module, compact, (x, (torch.zeros(2, 2, 6), torch.zeros(2, 2, 6))))
    _, (h, _) = functional_call(module, compact, (x,))
    with pytest.raises(UnsupportedModelError, match=r"keep \[4, 3\] units: take each"):
        h.sum()
    with pytest.raises(UnsupportedModelError, match="packed"):
        module(nn.utils.rnn.pack_sequence([torch.randn(4, 3)]))
