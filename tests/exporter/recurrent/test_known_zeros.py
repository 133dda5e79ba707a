"""First states that a model writes as zeros, as tutorials do."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from exporter.api import export
from exporter.recurrent.known_zeros import KnownZeros, is_known_zero


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda x: torch.zeros(2, 3), True),
        (lambda x: x.new_zeros(1, 3).expand(2, -1).to(torch.float64).requires_grad_(), True),
        (torch.zeros_like, True),
        (lambda x: x.new(2, 3).zero_(), True),
        (lambda x: torch.zeros(2, 3) + x, False),
        (lambda x: torch.zeros(2, 3).add_(1), False),
        (torch.ones_like, False),
    ],
)
def test_what_is_known_to_be_zeros(make: Callable[[Tensor], Tensor], known: bool) -> None:
    with KnownZeros():
        made = make(torch.randn(2, 3))
    assert is_known_zero(made) == known


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.__setitem__(0, 1),
        lambda state: state.view(-1).fill_(1),
        lambda state: state.unbind(0)[0].copy_(torch.ones(3)),
        lambda state: torch.add(torch.ones(2, 3), 1, out=state),
        nn.init.ones_,
    ],
)
def test_zeros_that_are_written_to_are_not_known(write: Callable[[Tensor], object]) -> None:
    with KnownZeros():
        state = torch.zeros(2, 3)
        write(state)
    assert not is_known_zero(state)


def test_zeros_that_are_read_stay_known() -> None:
    with KnownZeros():
        state = torch.zeros(2, 3)
        _ = state.shape, state[0], len(state), state.type()
    assert is_known_zero(state)


class Tutorial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.lstm.flatten_parameters()
        h0 = torch.zeros(2, x.size(0), 6).requires_grad_().to(x.device)
        c0 = torch.zeros(2, x.size(0), 6).requires_grad_().to(x.device)
        out, _ = self.lstm(x, (h0.detach(), c0.detach()))
        return self.head(out[:, -1, :])  # type: ignore[no-any-return]


def test_units_of_a_layer_that_begins_at_zeros_of_the_models_own_can_be_dropped(tmp_path: Path) -> None:
    bundle = export(Tutorial(), torch.randn(2, 4, 3), output=tmp_path / "bundle")
    assert [(block.name, block.size) for block in bundle.layout.blocks] == [("lstm.l0", 6), ("lstm.l1", 6)]
