"""A bundle that normalises its input trains on raw samples as another does on normalised ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import edge_fl
from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.runtimes.base import open_runtime
from exporter.normalise import measure, with_normalised_input

MEAN, STD = [1.0, -2.0, 3.0, 0.5], [2.0, 0.5, 1.5, 4.0]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def trained(bundle: Bundle, runtime: str, x: np.ndarray, *, width: int) -> dict[str, np.ndarray]:
    pattern = Pattern.prefix(bundle.layout, width)
    kept = Selection.of(pattern, "units").gather(bundle.weights())
    step = open_runtime(runtime, bundle).train_step(pattern, len(x))
    batch = Batch(x.astype(np.float32), np.arange(len(x)) % 3, np.ones(len(x), dtype=np.float32))
    for _ in range(3):
        kept = step(kept, batch, lr=0.1).tensors
    return kept


@pytest.mark.parametrize("runtime", ["onnx", pytest.param("torch_eager", marks=pytest.mark.matrix)])
def test_raw_samples_train_as_normalised_ones(runtime: str, tmp_path: Path) -> None:
    raw = np.random.default_rng(0).normal(MEAN, STD, (6, 4)).astype(np.float32)
    example = torch.zeros(2, 4)
    plain = edge_fl.export(model(), example, runtimes=[runtime], output=tmp_path / "plain")
    ours = edge_fl.export(model(), example, runtimes=[runtime], output=tmp_path / "ours", normalise=(MEAN, STD))

    assert {tensor.name for tensor in ours.layout.frozen} == {"input_mean", "input_std"}
    assert [t.name for t in ours.layout.tensors] == [t.name for t in plain.layout.tensors]
    for width in (1000, 500):
        found = trained(ours, runtime, raw, width=width)
        wanted = trained(plain, runtime, (raw - MEAN) / STD, width=width)
        for name, array in wanted.items():
            assert found[name] == pytest.approx(array, abs=1e-6)


def test_channels_come_first_or_last() -> None:
    sample = Input((3, 5), "float32")
    x = np.random.default_rng(0).normal(size=(7, 3, 5)).astype(np.float32)

    for axis, others in ((0, (0, 2)), (-1, (0, 1))):
        mean, std = measure(x, sample, axis=axis)
        identity = with_normalised_input(nn.Identity(), mean, std, sample, axis=axis)
        normalised = identity(torch.from_numpy(x)).numpy()
        assert normalised.mean(axis=others) == pytest.approx(0, abs=1e-6)
        assert normalised.std(axis=others) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("mean", "std", "sample", "axis", "sentence"),
    [
        ([0.0], [1.0, 1.0], Input((2,), "float32"), 0, "1 means and 2 standard deviations"),
        ([0.0] * 3, [1.0] * 3, Input((2, 5), "float32"), 0, "3 means for 2 channels"),
        ([0.0], [0.0], Input((2,), "float32"), 0, "above 0"),
        ([0.0], [1e-50], Input((2,), "float32"), 0, "above 0"),
        ([1e50], [1.0], Input((2,), "float32"), 0, "finite"),
        ([float("nan")], [1.0], Input((2,), "float32"), 0, "finite"),
        ([0.0], [1.0], Input((2,), "int64"), 0, "Only samples of float32"),
        ([0.0], [1.0], Input((2,), "float32"), 1, "no axis 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    mean: list[float], std: list[float], sample: Input, axis: int, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        with_normalised_input(nn.Identity(), mean, std, sample, axis=axis)


def test_small_features_are_normalised_and_constant_ones_shifted() -> None:
    x = np.stack([np.float32([1e-7, 3e-7, 5e-7]), np.full(3, 4, np.float32)], axis=1)
    mean, std = measure(x, Input((2,), "float32"))

    assert mean == pytest.approx([3e-7, 4.0])
    assert std == pytest.approx([1e-7 * (8 / 3) ** 0.5, 1.0])


def test_a_model_that_has_such_a_name_is_refused() -> None:
    model = nn.Identity()
    model.input_mean = nn.Parameter(torch.zeros(1))
    with pytest.raises(ConfigError, match="attribute 'input_mean' already"):
        with_normalised_input(model, [0.0], [1.0], Input((2,), "float32"))


def test_data_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"samples of shape \(3,\)"):
        measure(np.zeros((4, 3), np.float32), Input((2,), "float32"))
