from collections.abc import Callable

import pytest
import torch
from torch import nn

from edge_fl.core.errors import DataError, EdgeFLError, ModelError, UnsupportedModelError
from edge_fl.core.inputs import Input
from exporter.accept import Fit, accept
from tests.exporter import models

FIT = Fit(Input((6,), "float32"), ((3,),), 3)


def with_weight(value: torch.Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3))
    model[0].weight = nn.Parameter(value)
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3))
    model.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda: nn.Sequential(nn.ConvTranspose3d(6, 3, 1)), UnsupportedModelError, "upsampling"),
        (
            lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)),
            UnsupportedModelError,
            "'1'",
        ),
        (lambda: nn.Linear(6, 3).double(), UnsupportedModelError, "float64"),
        (lambda: with_weight(torch.zeros(3, 6, dtype=torch.complex64)), UnsupportedModelError, "complex64"),
        (lambda: with_weight(torch.full((3, 6), float("nan"))), UnsupportedModelError, "NaN"),
        (frozen, UnsupportedModelError, "every parameter of the model is frozen"),
        (lambda: nn.Sequential(nn.Flatten()), UnsupportedModelError, "no parameters"),
        (models.Noisy, UnsupportedModelError, "two outputs for one input"),
        (models.Branching, UnsupportedModelError, "torch.where"),
        (lambda: nn.Linear(7, 3), ModelError, "forward fails on 3 samples of shape"),
        (lambda: nn.Linear(6, 4), DataError, "its classes or targets and its loss need"),
    ],
)
def test_a_model_that_cannot_be_exported_is_refused_in_one_sentence(
    build: Callable[[], nn.Module], error: type[EdgeFLError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        accept(build(), FIT)
    assert "\n" not in str(caught.value)


def test_dropout_is_let_through() -> None:
    accept(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), FIT)
