"""Models that give several outputs, and losses that name them."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import edge_fl
from edge_fl.core.batch import Batch
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import EdgeFLError
from edge_fl.core.pattern import Pattern
from edge_fl.runtimes.base import open_runtime

LOSSES = """
import torch
from torch.nn import functional

def with_hidden(logits, hidden, targets):
    return functional.cross_entropy(logits, targets, reduction="none") + 0.1 * hidden.pow(2).mean((1, 2))

def of_hidden(hidden, targets, weight=2.0):
    return weight * hidden.mean((1, 2)).pow(2)

def in_order(first, second, targets):
    return functional.cross_entropy(first, targets, reduction="none") + 0.1 * second.pow(2).mean((1, 2))

def alone(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")

def with_number(logits, number, targets):
    return functional.cross_entropy(logits, targets, reduction="none") + number.pow(2)

class Module(torch.nn.Module):
    def forward(self, logits, hidden, targets):
        return with_hidden(logits, hidden, targets)

module = Module()

def with_default(logits, hidden=None, targets=None):
    return logits.mean(1)

def with_keyword(logits, hidden, *, targets):
    return logits.mean(1)

def mean(outputs, targets):
    return functional.cross_entropy(outputs, targets)

def broken(outputs, targets):
    return torch.nowhere(outputs)

def with_more(logits, attention, targets):
    return logits.mean(1)
"""


class Named(NamedTuple):
    """Of two outputs."""

    logits: Tensor
    hidden: Tensor


class Model(nn.Module):
    """A hidden layer beside the classes, given as ``kind`` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.tail, self.head = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 3)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        hidden = self.tail(functional.relu(self.body(x)))
        logits = self.head(functional.gelu(hidden).mean(1))
        given: dict[str, Any] = {
            "dict": {"hidden": hidden, "logits": logits},
            "tuple": (logits, hidden),
            "unnamed": {"hidden": hidden, "scores": logits},
            "named": Named(logits, hidden),
            "numbers": {"logits": logits, "hidden": hidden, "number": hidden.mean((1, 2))},
            "nested": (logits, (hidden, hidden)),
            "list": [logits],
            "in training": (logits, hidden) if self.training else logits,
            "scalar": {"logits": logits, "hidden": hidden.mean()},
            "plain": logits,
        }
        return given[self.kind]


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("losses") / "losses.py"
    file.write_text(LOSSES)
    return file


def exported(root: Path, kind: str, loss: Any, **more: Any) -> Bundle:
    torch.manual_seed(0)
    options = {"runtimes": ["onnx"], "widths": [1.0, 0.5], "output": root, **more}
    return edge_fl.export(Model(kind), torch.zeros(2, 4, 6), loss=loss, batch=4, **options)


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((40, 4, 6)).astype("f4"), rng.integers(0, 3, 40)


@pytest.mark.parametrize(("kind", "name"), [("dict", "with_hidden"), ("tuple", "in_order"), ("named", "module")])
def test_a_loss_of_named_outputs_trains_by_all(kind: str, name: str, losses: Path, tmp_path: Path) -> None:
    bundle = exported(tmp_path / "b", kind, f"{losses}:{name}")
    x, y = data()
    batch = Batch(x[:4], y[:4], np.ones(4, dtype=np.float32))
    step = open_runtime("onnx", bundle).train_step(Pattern.full(bundle.layout), 4)(bundle.weights(), batch, lr=0.1)

    model = Model("dict")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in bundle.weights().items()})
    outputs = model(torch.from_numpy(x[:4]))
    hard = functional.cross_entropy(outputs["logits"], torch.from_numpy(y[:4]))
    loss = hard + 0.1 * outputs["hidden"].pow(2).mean()
    loss.backward()
    assert step.loss == pytest.approx(loss.item(), rel=1e-5)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None
        expected = (parameter - 0.1 * parameter.grad).detach().numpy()
        np.testing.assert_allclose(step.tensors[key], expected, atol=1e-6, err_msg=key)
    _, predicted = open_runtime("onnx", bundle).evaluator()(bundle.weights(), batch)
    np.testing.assert_allclose(predicted, outputs["logits"].detach().numpy(), atol=1e-6)


def test_what_the_loss_reads_is_dense(losses: Path, tmp_path: Path) -> None:
    """Units of the hidden layer are an output; those before it may be dropped."""
    assert {block.name for block in exported(tmp_path / "b", "dict", f"{losses}:with_hidden").layout.blocks} == {
        "body"
    }
    assert {block.name for block in exported(tmp_path / "c", "dict", f"{losses}:alone").layout.blocks} == {
        "body",
        "tail",
    }


@pytest.mark.matrix
def test_a_run_scores_and_predicts_the_logits(losses: Path, tmp_path: Path) -> None:
    bundle = exported(tmp_path / "b", "dict", f"{losses}:with_hidden", variants=["plain", "distil"])
    for method in (edge_fl.FedDrop(dropout=0.5), edge_fl.FjORD()):
        run = edge_fl.simulate(
            bundle, data(), method=method, clients=3, rounds=2, test_data=data(), output=tmp_path / method.name
        )
        assert "accuracy" in run.metrics[-1].scores


@pytest.mark.matrix
def test_other_runtimes_extract_and_kept_features(losses: Path, tmp_path: Path) -> None:
    loss = f"{losses}:with_hidden"
    assert (
        exported(tmp_path / "b", "dict", loss, runtimes=["executorch"]).manifest.parity["executorch"].weights
        < 1e-5
    )
    cut = exported(tmp_path / "c", "dict", loss, train=["tail.*", "head.*"], cache_features=True)
    assert cut.manifest.features is not None
    assert cut.manifest.parity["onnx"].weights < 1e-5


def test_a_loss_of_one_output_may_name_another_than_the_logits(losses: Path, tmp_path: Path) -> None:
    bundle = exported(tmp_path / "b", "dict", f"{losses}:of_hidden")
    assert bundle.manifest.classes == 3  # what it predicts are logits


@pytest.mark.parametrize(
    ("kind", "name"), [pytest.param("numbers", "with_number", marks=pytest.mark.matrix), ("list", "alone")]
)
def test_other_shapes_of_outputs(kind: str, name: str, losses: Path, tmp_path: Path) -> None:
    assert exported(tmp_path / "b", kind, f"{losses}:{name}").manifest.parity["onnx"].weights < 1e-5


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        (
            "dict",
            "with_more",
            "'logits', 'attention', and the model gives in evaluation 'hidden', 'logits': name",
        ),
        ("plain", "with_hidden", "the model gives in evaluation one tensor: name"),
        ("unnamed", "alone", "gives 'hidden', 'scores': give what is trained the name 'logits'"),
        ("tuple", "alone", "gives 'number 0', 'number 1': give what is trained the name 'logits'"),
        ("nested", "in_order", "of which 'number 1' is a tuple: name"),
        ("in training", "alone", "The model gives tuple for one sample"),
        ("scalar", "with_hidden", "The output 'hidden' is not of each sample"),
        ("plain", "mean", r"The loss 'mean' gives \(\) for 3 samples: give one value a sample"),
        ("plain", "broken", r"The loss 'broken' fails on outputs \(3, 3\) and targets \(3,\): .*nowhere"),
        ("dict", "with_default", r"takes \(logits, hidden=None, targets=None\): let it take"),
        ("dict", "with_keyword", r"takes \(logits, hidden, \*, targets\): let it take"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, name: str, says: str, losses: Path, tmp_path: Path) -> None:
    with pytest.raises(EdgeFLError, match=says):
        exported(tmp_path / "b", kind, f"{losses}:{name}")
    assert not (tmp_path / "b").exists()


def test_a_function_is_a_loss(tmp_path: Path) -> None:
    def own(logits: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits, targets, reduction="none") + hidden.pow(2).mean((1, 2))

    bundle = exported(tmp_path / "b", "dict", own)
    assert bundle.manifest.loss == "own"
    assert bundle.manifest.parity["onnx"].weights < 1e-5
