"""Every score is that of torchmetrics, over batches with padding and over devices whose sums are added."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torchmetrics
from numpy.typing import NDArray

from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.bundle import SCHEMA, Manifest
from edge_fl.core.errors import ConfigError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout
from edge_fl.metrics.base import (
    Metric,
    WholeSetMetric,
    default_scores,
    metric_names,
    open_metric,
    open_metrics,
    sent_metrics,
)

CLASSES = 7
_CLASSIFIERS = {
    "accuracy": lambda: torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES, average="micro"),
    "top-3": lambda: torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES, top_k=3, average="micro"),
    "macro-f1": lambda: torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="macro"),
    "mean-iou": lambda: torchmetrics.JaccardIndex(task="multiclass", num_classes=CLASSES, average="macro"),
}
_NUMBERS = {
    "mae": torchmetrics.MeanAbsoluteError,
    "rmse": lambda: torchmetrics.MeanSquaredError(squared=False),
    "r2": torchmetrics.R2Score,
}


CLASS = Input((), "int64")


def manifest(classes: int = CLASSES, target: Input = CLASS, loss: str = "cross_entropy") -> Manifest:
    """What a metric asks of a bundle."""
    return Manifest(
        schema=SCHEMA,
        name="m",
        dataset="",
        classes=classes,
        input=Input((2,), "float32"),
        target=target,
        loss=loss,
        layout=Layout((), ()),
        programs={},
        parity={},
        tools={},
    )


NUMBERS = manifest(3, Input((3,), "float32"), "mse")


def added(metric: Metric, outputs: NDArray[np.float32], y: NDArray[np.generic], batch: int = 8) -> float:
    """The score of sums over batches of ``batch``, the last of which is padded with nonsense of weight 0."""
    total = None
    for start in range(0, len(y), batch):
        own, target = outputs[start : start + batch], y[start : start + batch]
        padding = batch - len(own)
        weight = np.array([1.0] * len(own) + [0.0] * padding, dtype=np.float32)
        own = np.concatenate([own, np.full((padding, *own.shape[1:]), 9.0, np.float32)])
        target = np.concatenate([target, np.zeros((padding, *target.shape[1:]), target.dtype)])
        sums = metric.sums(own, target, weight)
        total = sums if total is None else total + sums
    assert total is not None
    assert metric.plausible(total, len(y))
    return metric.value(total)


def opened(name: str) -> Metric:
    """A metric that has sums."""
    metric = open_metric(name)
    assert isinstance(metric, Metric)
    return metric


@pytest.mark.parametrize("name", _CLASSIFIERS)
def test_scores_of_classes_are_torchmetrics(name: str) -> None:
    rng = np.random.default_rng(1)
    outputs = rng.standard_normal((61, CLASSES)).astype(np.float32)
    y = rng.integers(0, CLASSES - 1, 61)  # one class never occurs
    theirs = _CLASSIFIERS[name]()(torch.from_numpy(outputs), torch.from_numpy(y))
    assert added(opened(name), outputs, y) == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("name", ["accuracy", "macro-f1", "mean-iou"])
def test_scores_of_pixels_are_torchmetrics_without_those_that_have_no_class(name: str) -> None:
    rng = np.random.default_rng(6)
    outputs = rng.standard_normal((9, 4, 5, CLASSES)).astype(np.float32)
    y = rng.integers(0, CLASSES, (9, 4, 5))
    y[:, 2] = LEFT_OUT  # as many of each sample, which accuracy weighs equally
    real = y != LEFT_OUT
    expected = _CLASSIFIERS[name]()(torch.from_numpy(outputs[real]), torch.from_numpy(y[real]))
    assert added(opened(name), outputs, y) == pytest.approx(float(expected), abs=1e-6)


def test_perplexity_is_torchmetrics() -> None:
    rng = np.random.default_rng(2)
    outputs = rng.standard_normal((21, 5, CLASSES)).astype(np.float32)
    y = rng.integers(0, CLASSES, (21, 5))
    theirs = torchmetrics.text.Perplexity()(torch.from_numpy(outputs), torch.from_numpy(y))
    assert added(opened("perplexity"), outputs, y) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize("name", _NUMBERS)
def test_scores_of_numbers_are_torchmetrics(name: str) -> None:
    rng = np.random.default_rng(3)
    y = rng.standard_normal((45, 3)).astype(np.float32) * [1, 5, 100] + [0, 3, 1000]
    outputs = (y + rng.standard_normal((45, 3)) * 0.3).astype(np.float32)
    y = y.astype(np.float32)
    ours, theirs = torch.from_numpy(outputs), torch.from_numpy(y)
    expected = _NUMBERS[name]()(ours, theirs)
    assert added(opened(name), outputs, y) == pytest.approx(float(expected), rel=1e-4)


def test_binary_accuracy_is_torchmetrics() -> None:
    rng = np.random.default_rng(4)
    outputs = rng.standard_normal((30, 4)).astype(np.float32)
    y = rng.integers(0, 2, (30, 4)).astype(np.float32)
    theirs = torchmetrics.Accuracy(task="binary")(torch.from_numpy(outputs).sigmoid(), torch.from_numpy(y))
    assert added(opened("binary-accuracy"), outputs, y) == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("name", [*_CLASSIFIERS, "perplexity", *_NUMBERS])
def test_sums_of_devices_add_to_the_score_of_all(name: str) -> None:
    rng, metric = np.random.default_rng(5), opened(name)
    described = NUMBERS if name in _NUMBERS else manifest()
    outputs = rng.standard_normal((40, described.classes)).astype(np.float32)
    y = rng.standard_normal((40, 3)).astype(np.float32) if name in _NUMBERS else rng.integers(0, CLASSES, 40)
    ones = np.ones(40, dtype=np.float32)
    parts = [metric.sums(outputs[cut], y[cut], ones[cut]) for cut in (slice(0, 7), slice(7, 40))]
    assert all(len(part) == metric.size(described) for part in parts)
    assert metric.value(parts[0] + parts[1]) == pytest.approx(metric.value(metric.sums(outputs, y, ones)))


def test_every_metric_is_listed_and_opens() -> None:
    assert {"accuracy", "top-3", "macro-f1", "perplexity", "mae", "rmse", "r2"} <= set(metric_names())
    for name in metric_names():
        assert open_metric(name).name == name


@pytest.mark.parametrize(
    ("name", "described", "sentence"),
    [
        ("mae", manifest(), "targets are classes; use accuracy"),
        ("accuracy", NUMBERS, "targets are numbers; use mae"),
        ("top-9", manifest(), "always 1 for 7 classes"),
        ("macro-f1", manifest(33278), "at most 1365 classes, not 33278"),
        ("f2", manifest(), "There is no score 'f2'"),
        ("gone.py:score", manifest(), "no Python file 'gone.py'"),
    ],
)
def test_a_score_that_cannot_be_is_refused(name: str, described: Manifest, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        open_metrics([name], described)


OWN = """
from edge_fl.metrics.classification import TopK

class Wrong(TopK):
    name = "wrong"
    def __init__(self):
        super().__init__(1)
        self.name = "wrong"
    def value(self, sums):
        return 1 - super().value(sums)

def largest(outputs, y):
    return outputs.max()

def broken(outputs, y):
    return 1 / 0

accuracy = TopK(1)
"""


def test_a_score_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    wrong, largest = open_metrics([f"{file}:Wrong", f"{file}:largest"], manifest())
    assert isinstance(wrong, Metric)
    assert isinstance(largest, WholeSetMetric)
    assert largest.of(np.array([[1.0, 4.0]]), np.array([0])) == 4.0
    (broken,) = open_metrics([f"{file}:broken"], manifest())
    assert isinstance(broken, WholeSetMetric)
    with pytest.raises(ConfigError, match=r"'broken' cannot be computed: .*division by zero"):
        broken.of(np.zeros((1, 2)), np.zeros(1))
    with pytest.raises(ConfigError, match="Two scores are called 'accuracy'"):
        open_metrics(["accuracy", f"{file}:accuracy"], manifest())


@pytest.mark.parametrize("name", ["own.py:Wrong", "a/b", "/etc/passwd:x"])
def test_a_device_takes_plain_names_only(name: str) -> None:
    with pytest.raises(ConfigError, match="is no plain name; no code comes with it"):
        sent_metrics([name], manifest())


def test_what_is_usual_for_a_loss() -> None:
    assert default_scores(manifest()) == ("accuracy",)
    assert default_scores(manifest(), top=3) == ("top-3",)
    assert default_scores(NUMBERS) == ("mae", "rmse")
    assert default_scores(manifest(4, Input((4,), "float32"), "binary_cross_entropy")) == ("binary-accuracy",)
