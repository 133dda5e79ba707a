"""A class for each pixel: outputs [B, C, H, W], targets [B, H, W]."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import edge_fl
from edge_fl.core.batch import LEFT_OUT
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.core.inputs import Input
from exporter.commands.export_options import target_for
from exporter.extract.extract import Trained, Wanted, extract
from exporter.losses import find_loss

CLASSES = 3


class SmallUNet(nn.Module):
    """Two sizes of images, and a connection past the smaller one."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.inner, self.up = nn.Conv2d(6, 8, 3, padding=1), nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.out = nn.Conv2d(12, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        large = torch.relu(self.norm(self.down(x)))
        small = torch.relu(self.inner(functional.max_pool2d(large, 2)))
        outputs: Tensor = self.out(torch.cat([large, torch.relu(self.up(small))], 1))
        return outputs


def dice(outputs: Tensor, y: Tensor) -> Tensor:
    """One minus the Dice coefficient, and cross entropy, as segmentation is often trained."""
    guesses, truth = outputs.softmax(1), functional.one_hot(y, CLASSES).movedim(-1, 1).float()
    both = (guesses * truth).sum((1, 2, 3))
    return (
        1
        - 2 * both / (guesses + truth).sum((1, 2, 3))
        + functional.cross_entropy(outputs, y, reduction="none").mean((1, 2))
    )


def data(folder: Path, name: str, samples: int, *, without: bool = False) -> str:
    """Images whose squares of two colours are two classes, in an npz: source."""
    rng = np.random.default_rng(samples)
    x, y = rng.normal(0, 0.2, (samples, 2, 8, 8)).astype(np.float32), np.zeros((samples, 8, 8), np.int64)
    for image, mask in zip(x, y, strict=True):
        for of_class in (1, 2):
            top, left = rng.integers(0, 5, 2)
            mask[top : top + 4, left : left + 4] = of_class
        for of_class in (1, 2):
            image[of_class - 1][mask == of_class] += 1.5
    if without:
        y[:, 0] = LEFT_OUT
    np.savez(folder / name, x=x, y=y)
    return f"npz:{folder / name}"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Trains by cross entropy."""
    torch.manual_seed(0)
    return edge_fl.export(
        SmallUNet(),
        torch.randn(3, 2, 8, 8),
        runtimes=["onnx", "torch-eager"],
        variants=["plain", "distil"],
        widths=[1.0, 0.5],
        batch=10,
        output=tmp_path_factory.mktemp("segmentation") / "bundle",
    )


@pytest.mark.parametrize("shape", [(5,), (4, 5)])
def test_cross_entropy_of_positions_is_torchs(shape: tuple[int, ...]) -> None:
    outputs = torch.randn(6, CLASSES, *shape)
    y = torch.randint(0, CLASSES, (6, *shape))
    y[:, 0], y[5] = LEFT_OUT, LEFT_OUT
    found = find_loss("cross_entropy").per_sample(outputs, y)
    expected = [
        functional.cross_entropy(o[None], t[None], ignore_index=LEFT_OUT) for o, t in zip(outputs, y, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected).nan_to_num())


def test_outputs_say_what_a_target_is(bundle: Bundle) -> None:
    assert bundle.manifest.target == Input((8, 8), "int64")
    assert bundle.manifest.classes == CLASSES


@pytest.mark.matrix
@pytest.mark.parametrize("variant", ["plain", "distil"])
def test_executorch_trains_it(variant: str, tmp_path: Path) -> None:
    found = edge_fl.export(
        SmallUNet(),
        torch.randn(3, 2, 8, 8),
        runtimes=["executorch"],
        variants=[variant],
        output=tmp_path / "bundle",
    )
    assert found.manifest.parity["executorch"].weights < 1e-4


@pytest.mark.parametrize("method", ["fedavg", "fjord+kd"])
def test_a_model_learns_a_class_for_each_pixel(method: str, bundle: Bundle, tmp_path: Path) -> None:
    def run(trainer: str) -> edge_fl.Run:
        return edge_fl.simulate(
            bundle,
            data(tmp_path, "train.npz", 120, without=True),
            test_data=data(tmp_path, "test.npz", 30, without=True),
            method=method,
            clients=4,
            fraction=1.0,
            rounds=6,
            local_steps=6,
            lr=0.2,
            batch=10,
            scores=["accuracy", "mean-iou"],
            seed=0,
            trainer=trainer,
            output=tmp_path / trainer,
        )

    stacked, program = run("stacked"), run("runtime")
    assert stacked.scores["accuracy"] > 0.9
    assert stacked.scores["mean-iou"] > 0.75
    for name, weights in stacked.weights.items():
        np.testing.assert_allclose(program.weights[name], weights, atol=1e-4)


def test_a_delivered_model_gives_classes_first_as_the_model_does(bundle: Bundle, tmp_path: Path) -> None:
    trained = Trained(bundle.weights(), "run", "fedavg", 1)
    path, card = extract(bundle, trained, Wanted("onnx"), tmp_path / "unet.onnx")
    x = np.random.default_rng(0).standard_normal((4, 2, 8, 8)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"x": x})
    assert card.outputs == found.shape[1:] == (CLASSES, 8, 8)


def test_a_loss_of_ones_own_takes_classes_first(tmp_path: Path) -> None:
    found = edge_fl.export(
        SmallUNet(),
        torch.randn(3, 2, 8, 8),
        loss=dice,
        runtimes=["onnx"],
        output=tmp_path / "bundle",
    )
    assert found.manifest.target == Input((8, 8), "int64")


def of_positions(outputs: Tensor, y: Tensor) -> Tensor:
    """The loss of a language model, [B, T, C]."""
    return functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none").reshape(y.shape).mean(1)


def test_a_loss_of_ones_own_takes_classes_last(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    found = edge_fl.export(
        model, torch.randn(3, 5, 4), loss=of_positions, runtimes=["onnx"], output=tmp_path / "bundle"
    )
    assert found.manifest.target == Input((5,), "int64")
    assert found.manifest.classes == CLASSES


def test_the_command_takes_classes_and_the_shape_of_their_targets() -> None:
    found = target_for((None, "2x8x8", CLASSES, "8x8"), "unet", ("onnx",), {})
    assert (found.target, found.classes) == (Input((8, 8), "int64"), CLASSES)
    assert found.fit.outputs == ((CLASSES, 8, 8),)


def test_masks_of_another_size_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    np.savez(tmp_path / "small.npz", x=np.zeros((40, 2, 8, 8), np.float32), y=np.zeros((40, 4, 4), np.int64))
    with pytest.raises(DataError, match=r"targets of shape \(4, 4\) a sample"):
        edge_fl.simulate(bundle, f"npz:{tmp_path / 'small.npz'}", clients=2, rounds=1, output=tmp_path / "run")


def test_losses_of_one_class_a_sample_take_no_positions(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
    with pytest.raises(ConfigError, match="compares one class a sample"):
        edge_fl.export(model, torch.randn(3, 5, 4), loss="masked_cross_entropy", output=tmp_path / "bundle")


def test_a_class_for_each_token_has_a_loss_of_its_own(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))
    with pytest.raises(ConfigError, match="take loss='sequence_cross_entropy'"):
        edge_fl.export(model, torch.zeros(3, 5, dtype=torch.int64), output=tmp_path / "bundle")


def test_images_as_wide_as_there_are_classes_have_classes_first(tmp_path: Path) -> None:
    def own(outputs: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, y, reduction="none").mean((1, 2))

    model = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 1))
    found = edge_fl.export(model, torch.randn(3, 2, 8, 8), loss=own, runtimes=["onnx"], output=tmp_path / "bundle")
    y = np.tile(np.arange(8).reshape(1, 8, 1), (40, 1, 8))  # the class is the row, which x tells
    x = np.stack([y / 8, np.ones_like(y)], 1).astype(np.float32)
    run = edge_fl.simulate(
        found,
        (x, y),
        test_data=(x, y),
        clients=2,
        fraction=1.0,
        rounds=12,
        lr=0.5,
        seed=0,
        output=tmp_path / "run",
    )
    assert run.scores["accuracy"] > 0.4  # a column has each class once: along it no more than 1 in 8 is right


def test_numbers_have_no_classes() -> None:
    with pytest.raises(ConfigError, match="without --classes"):
        target_for((None, "2x8x8", 4, "4"), "unet", ("onnx",), {"loss": "mse"})
