"""Models in torch's wrappers are exported as what is in them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn

import edge_fl
from edge_fl.core.errors import ModelError
from exporter.model_file import load_model
from exporter.wrapped import unwrapped


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: nn.DataParallel(torch.compile(model)),
        *(pytest.param(wrap, marks=pytest.mark.matrix) for wrap in (torch.compile, nn.DataParallel)),
    ],
)
def test_a_wrapped_model_gives_the_bundle_of_the_model(
    wrap: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    wanted = edge_fl.export(plain(), torch.zeros(2, 6), name="model", output=tmp_path / "plain")
    found = edge_fl.export(wrap(plain()), torch.zeros(2, 6), name="model", output=tmp_path / "wrapped")
    assert found.manifest.programs == wanted.manifest.programs
    for name, weight in wanted.weights().items():
        np.testing.assert_array_equal(found.weights()[name], weight)


def test_a_model_in_distributed_data_parallel_is_the_model(tmp_path: Path) -> None:
    model = plain()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert unwrapped(nn.parallel.DistributedDataParallel(model)) is model
    finally:
        distributed.destroy_process_group()


class Own(nn.Module):
    """A model of a user's that names its child as torch.compile does."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod = plain()

    def forward(self, x: Tensor) -> Tensor:
        return self._orig_mod(x) * 5  # type: ignore[no-any-return]


class OwnParallel(nn.DataParallel[nn.Module]):
    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs) * 5  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", [Own(), OwnParallel(plain()), plain()])
def test_a_forward_of_the_users_is_kept(model: nn.Module) -> None:
    assert unwrapped(model) is model


@pytest.mark.parametrize(
    ("wrap", "sentence"),
    [
        (torch.jit.script, r"'1' is of torch\.jit: give the nn\.Module that was scripted or traced"),
        (lambda model: torch.jit.trace(model, torch.zeros(2, 6)), r"'1' is of torch\.jit"),
        (torch.compile, "'1' is compiled: export the model first, and call torch.compile later"),
    ],
)
def test_a_module_within_is_named(wrap: Callable[[nn.Module], nn.Module], sentence: str) -> None:
    with pytest.raises(ModelError, match=f"The module {sentence}"):
        unwrapped(nn.Sequential(nn.Identity(), wrap(plain())))


def test_a_scripted_model_is_refused_as_that() -> None:
    with pytest.raises(ModelError, match=r"The model is of torch\.jit"):
        unwrapped(torch.jit.script(plain()))


def test_a_users_function_may_give_a_wrapped_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\n\n\ndef build():\n    return nn.DataParallel(nn.Linear(4, 2))\n")
    assert isinstance(load_model(f"{file}:build"), nn.Linear)
