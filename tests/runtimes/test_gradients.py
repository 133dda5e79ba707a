import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from edge_fl.core.bundle import Optimizer, Program
from edge_fl.runtimes._gradients import Gradients, step_of

NAMES = ("a", "b")
OPTIMIZERS = (
    Optimizer(),
    Optimizer(weight_decay=0.1),
    Optimizer(momentum=0.9, weight_decay=0.1, clip=0.5),
    Optimizer(name="adam", weight_decay=0.1),
    Optimizer(name="adam", betas=(0.8, 0.95), clip=100.0),
)


def program(optimizer: Optimizer) -> Program:
    carried = [f"{kind}.{name}" for kind in ("tensor", *optimizer.slots) for name in NAMES]
    outputs = ("loss", *(f"new.{name}" for name in carried))
    return Program("step", "step", (*carried, "lr", "number"), outputs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_of_torch(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(0)
    step = program(optimizer)
    start = {name: rng.standard_normal((3, 2)).astype(np.float32) for name in NAMES}
    theirs = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in start.values()]
    if optimizer.name == "adam":
        reference: torch.optim.Optimizer = torch.optim.Adam(
            theirs, lr=0.1, betas=optimizer.betas, weight_decay=optimizer.weight_decay
        )
    else:
        reference = torch.optim.SGD(
            theirs, lr=0.1, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay
        )
    held = [np.zeros((3, 2), np.float32) for _ in range(len(optimizer.slots) * len(NAMES))]
    held = [*start.values(), *held]

    for number in range(1, 5):
        gradients = {f"tensor.{name}": rng.standard_normal((3, 2)).astype(np.float32) for name in NAMES}
        for tensor, gradient in zip(theirs, gradients.values(), strict=True):
            tensor.grad = torch.tensor(gradient, dtype=torch.float64)
        if optimizer.clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs, optimizer.clip)
        reference.step()
        given = Gradients(np.float32(number), gradients, {})
        run = step_of(step, optimizer, lambda _, given=given: given)
        loss, *held = run([*held, np.float32(0.1), np.float32(number)])
        assert loss == number

    assert all(array.dtype == np.float32 for array in held)
    for ours, tensor in zip(held, theirs, strict=False):
        np.testing.assert_allclose(ours, tensor.detach().numpy(), rtol=0, atol=1e-5)


def test_what_is_given_is_left_as_it_was_and_statistics_are_passed_on() -> None:
    weights: NDArray[np.float32] = np.ones(2, np.float32)
    step = Program("f", "step", ("tensor.a", "tensor.s", "lr"), ("loss", "new.tensor.a", "new.tensor.s"))
    gradients = {"tensor.a": np.full(2, 3, np.float32)}
    seen: NDArray[np.float32] = np.full(2, 7, np.float32)
    run = step_of(step, Optimizer(clip=1.0), lambda _: Gradients(np.float32(0), gradients, {"new.tensor.s": seen}))

    _, new, statistics = run([weights, np.zeros(2, np.float32), np.float32(1)])

    assert weights.tolist() == [1, 1]
    assert gradients["tensor.a"].tolist() == [3, 3]
    np.testing.assert_allclose(new, 1 - 0.5**0.5, rtol=1e-5)
    assert statistics is seen
