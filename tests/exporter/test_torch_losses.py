"""Torch's losses as people write them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from exporter.losses import find_loss
from exporter.torch_losses import named_as

FLOATS = (
    nn.MSELoss(),
    nn.L1Loss(),
    functional.l1_loss,
    nn.HuberLoss(),
    nn.SmoothL1Loss(),
    nn.BCEWithLogitsLoss(),
    functional.mse_loss,
    functional.huber_loss,
    functional.smooth_l1_loss,
    functional.binary_cross_entropy_with_logits,
)
OTHERS = (
    nn.CrossEntropyLoss(label_smoothing=0.1),
    nn.CrossEntropyLoss(weight=torch.ones(3)),
    nn.CrossEntropyLoss(ignore_index=0),
    nn.CrossEntropyLoss(reduction="none"),
    nn.MSELoss(reduction="sum"),
    nn.HuberLoss(delta=2.0),
    nn.SmoothL1Loss(beta=0.5),
    nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)),
    nn.L1Loss(reduction="none"),
    functional.poisson_nll_loss,
    "mse",
)


@pytest.mark.parametrize("loss", FLOATS)
def test_losses_of_numbers_train_as_torch_has_them(loss: Callable[..., Tensor]) -> None:
    found = find_loss(loss)
    outputs, y = 2 * torch.randn(5, 3), torch.rand(5, 3)
    assert found.target == "float32"
    torch.testing.assert_close(found.per_sample(outputs, y).mean(), loss(outputs, y))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss().eval(), functional.cross_entropy])
@pytest.mark.parametrize("shape", [(), (4,)])
def test_cross_entropy_trains_as_torch_has_it(loss: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    found = find_loss(loss)
    outputs, y = torch.randn(5, 3, *shape), torch.randint(0, 3, (5, *shape))
    assert found.target == "int64"
    torch.testing.assert_close(found.per_sample(outputs, y).mean(), loss(outputs, y))


@pytest.mark.parametrize("loss", OTHERS)
def test_other_settings_are_none_of_these(loss: object) -> None:
    assert named_as(loss) is None


def test_a_file_may_name_one(tmp_path: Path) -> None:
    file = tmp_path / "losses.py"
    file.write_text("from torch.nn import functional\n\nloss = functional.mse_loss\n")
    assert find_loss(f"{file}:loss") is find_loss("mse")


def test_a_subclass_may_compute_anything() -> None:
    class Own(nn.MSELoss):
        """Of the user's."""

    assert named_as(Own()) is None
