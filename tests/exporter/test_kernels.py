"""What the check calls trainable must be what an export can train; what it names must be found where it is."""

import pytest
from torch import Tensor, nn
from torch.nn import functional

from exporter.kernels import find_missing_kernels
from exporter.steps import STEPS
from exporter.zoo import find_model
from tests.exporter.sources import source


class Enlarging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        large: Tensor = functional.interpolate(self.features(x), scale_factor=2, mode="bilinear", antialias=True)
        return large.relu().mean(dim=(2, 3))


def interpolating() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 1), Enlarging(), nn.Linear(4, 3))


@pytest.mark.parametrize("variant", ["plain", "noise", "distil", "vardrop"])
@pytest.mark.parametrize("name", ["digits-mlp", "femnist-cnn"])
def test_onnx_has_every_kernel_of_the_zoo(name: str, variant: str) -> None:
    small = find_model(name).narrowed
    step = STEPS.find(variant)(source(small.build(), small.input_shape, small.classes))

    assert find_missing_kernels("onnx", step, batch=3) == ()


def test_a_gradient_is_laid_to_the_module_whose_forward_it_is_of() -> None:
    step = STEPS.find("plain")(source(interpolating(), (1, 5, 5), 3))

    (missing,) = find_missing_kernels("onnx", step, batch=3) or ()
    assert (missing.operation, missing.module) == ("aten._upsample_bilinear2d_aa_backward.default", "1")


def test_a_runtime_that_lists_no_kernels_is_not_guessed_at() -> None:
    assert (
        find_missing_kernels("ort_training", STEPS.find("plain")(source(nn.Linear(6, 3), (6,), 3)), batch=3)
        is None
    )
