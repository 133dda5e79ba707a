"""Models whose forward asks for single precision are still proven in double."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_fl.core.errors import UnsupportedModelError
from exporter.api import export
from exporter.double_precision import double_precision


def test_what_asks_for_single_precision_gets_double() -> None:
    x = torch.ones(2, dtype=torch.int64)
    with double_precision():
        made = [x.float(), x.to(torch.float32), torch.zeros(2), torch.arange(2, dtype=torch.float32), torch.eye(2)]
    assert {each.dtype for each in made} == {torch.float64}
    assert torch.zeros(2).dtype == torch.float32


class Counts(nn.Module):
    """How often each of 5 words is there, in products with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        counts = functional.one_hot(x, 5).float().mean(1) @ torch.eye(5)
        return self.head(self.hidden(counts).relu())  # type: ignore[no-any-return]


def test_a_model_that_casts_to_single_precision_is_proven(tmp_path: Path) -> None:
    bundle = export(Counts(), torch.randint(5, (2, 6)), output=tmp_path / "bundle")
    assert bundle.manifest.parity["onnx"].outputs < 1e-5


class Insists(nn.Linear):
    """Takes single precision alone."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32, "single precision, please"
        return super().forward(x)


def test_a_model_that_insists_on_single_precision_is_refused_in_a_sentence(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), Insists(3, 3))
    with pytest.raises(UnsupportedModelError, match=r"double precision.*AssertionError: single precision, please"):
        export(model, torch.zeros(2, 4), output=tmp_path / "bundle")
