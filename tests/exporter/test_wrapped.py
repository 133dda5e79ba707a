"""Models in torch's wrappers are exported as what is in them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import edge_fl
from edge_fl.core.errors import ModelError
from exporter.model_file import load_model
from exporter.wrapped import unwrapped


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "wrap", [torch.compile, nn.DataParallel, lambda model: nn.DataParallel(torch.compile(model))]
)
def test_a_wrapped_model_gives_the_bundle_of_the_model(
    wrap: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    wanted = edge_fl.export(plain(), torch.zeros(2, 6), name="model", output=tmp_path / "plain")
    found = edge_fl.export(wrap(plain()), torch.zeros(2, 6), name="model", output=tmp_path / "wrapped")
    assert found.manifest.programs == wanted.manifest.programs
    for name, weight in wanted.weights().items():
        np.testing.assert_array_equal(found.weights()[name], weight)


@pytest.mark.parametrize("scripted", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(2, 6))])
def test_a_scripted_model_is_refused_as_that(scripted: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(ModelError, match=r"of torch\.jit cannot be traced again: give the nn\.Module"):
        unwrapped(scripted(plain()))


def test_a_users_function_may_give_a_wrapped_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\n\n\ndef build():\n    return nn.DataParallel(nn.Linear(4, 2))\n")
    assert isinstance(load_model(f"{file}:build"), nn.Linear)
