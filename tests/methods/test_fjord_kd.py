"""FjORD with knowledge distillation: eq. (1) against plain torch, and what the programs are given."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.pattern import Pattern, Prefix, prefix_units
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection
from edge_fl.data.batcher import batches
from edge_fl.data.registry import Samples, load_dataset
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import Job, LocalHalf, LocalStep, Method, open_method
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.local_run import LocalRun, LocalSettings, train

LAYOUT = mlp_layout(6, 9, 7, 3)
WIDTHS = [1000, 500, 200]
STEPS, BATCH, LR = 12, 20, 0.2


def own(name: str, **parameters: object) -> Method:
    """The method with the widths above."""
    return open_method(name, {"widths": WIDTHS, **parameters})


def drawn(job: Job) -> list[int]:
    """The widths that FjORD draws."""
    half, widths = own("fjord").local(job), []
    for step in range(STEPS):
        assert isinstance(half.step.pattern.origin, Prefix)
        widths.append(half.step.pattern.origin.width)
        half.after_step(step, 1.0)
    return widths


def given(half: LocalHalf, step: int) -> dict[str, np.ndarray]:
    return dict(half.extra(Selection.of(half.step.pattern, "units"), step))


@pytest.mark.parametrize("tier", [0, 1, 2])
def test_the_student_is_what_fjord_draws_and_p_max_alone_is_trained_plainly(tier: int) -> None:
    job = Job(LAYOUT, "a", 1, 3, {}, {}, tier=tier, statistic_widths=(1000, 500, 200))
    half = own("fjord+kd").local(job)
    assert half.upload == Pattern.prefix(LAYOUT, WIDTHS[tier])
    for step, width in enumerate(drawn(job)):
        assert half.step.pattern == Pattern.prefix(LAYOUT, WIDTHS[tier])
        extra = given(half, step)
        if width == WIDTHS[tier]:
            assert (half.step.variant, extra) == ("plain", {})
        else:
            assert half.step.variant is None
            for block in LAYOUT.blocks:
                first = prefix_units(block.size, width)
                rest = prefix_units(block.size, WIDTHS[tier]) - first
                assert extra[f"student.{block.name}"].tolist() == [1.0] * first + [0.0] * rest
            assert extra["student_width"].tolist() == [float(width == other) for other in WIDTHS]
            assert half.step.width is None  # the pattern's
        half.after_step(step, 1.0)


def test_two_kinds_of_steps_are_all_there_are() -> None:
    """What the training loop goes by when it decides whether to change programs."""
    half, seen = own("fjord+kd").local(Job(LAYOUT, "a", 1, 3, {}, {})), list[LocalStep]()
    for number in range(100):
        if half.step not in seen:
            seen.append(half.step)
        half.after_step(number, 1.0)
    assert {step.variant for step in seen} == {"plain", None}
    assert len(seen) == 2


def test_a_tier_of_one_width_needs_no_program_that_distils() -> None:
    method = open_method("fjord+kd", {"widths": WIDTHS})
    full, least = dict(LAYOUT.sizes), Pattern.prefix(LAYOUT, 200).counts
    assert method.programs(LAYOUT, 0) == [("distil", full), ("plain", full)]
    assert method.programs(LAYOUT, 2) == [("plain", least)]


def outputs(weights: dict[str, Tensor], x: Tensor, width: int) -> Tensor:
    """The sub-model of the first ceil(p J) units, written out."""
    names, held = list(weights), x.flatten(1)
    for weight, bias in zip(names[::2], names[1::2], strict=True):
        last = bias == names[-1]
        units = len(weights[bias]) if last else prefix_units(len(weights[bias]), width)
        held = held @ weights[weight][:units, : held.shape[1]].T + weights[bias][:units]
        held = held if last else held.relu()
    return held


def eq_1(
    weights: dict[str, Tensor],
    x: Tensor,
    y: Tensor,
    *,
    teacher: int,
    student: int,
    alpha: float,
    t: float,
    kl: str,
) -> Tensor:
    wide, slim = outputs(weights, x, teacher), outputs(weights, x, student)
    hard = functional.cross_entropy(wide, y)
    if student == teacher:
        return hard
    one, other = (wide, slim) if kl == "teacher-student" else (slim, wide)
    p, q = (functional.softmax(logits / t, dim=1) for logits in (one, other))
    distance = (p * (p / q).log()).sum(1).mean()
    return hard + (1 - alpha) * functional.cross_entropy(slim, y) + alpha * t**2 * distance


@pytest.mark.parametrize(
    ("tier", "alpha", "t", "kl"),
    [
        (0, 1.0, 1.0, "teacher-student"),
        (0, 0.6, 3.0, "student-teacher"),
        (1, 0.3, 2.0, "teacher-student"),
        (2, 1.0, 1.0, "teacher-student"),
    ],
)
def test_local_training_descends_eq_1(small_bundle: Bundle, tier: int, alpha: float, t: float, kl: str) -> None:
    data = load_dataset("digits").train
    samples = Samples(data.x[:90], data.y[:90])
    start = small_bundle.weights()
    method = own("fjord+kd", alpha=alpha, temperature=t, direction=kl)
    job = Job(small_bundle.layout, "a", 1, 3, start, {}, tier=tier)
    run = LocalRun(method=method, job=job, samples=samples, settings=LocalSettings(STEPS, BATCH, LR), personal={})
    train(open_runtime("onnx", small_bundle), run)

    weights = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    stream, widths = Stream.of(seed=3, purpose="batches", client="a", round=1), drawn(job)
    assert tier == 2 or len(set(widths)) > 1
    for batch, student in zip(
        batches(samples, steps=STEPS, size=BATCH, stream=stream, whole=False), widths, strict=True
    ):
        real = batch.weight > 0
        x, y = torch.tensor(batch.x[real]), torch.tensor(batch.y[real])
        loss = eq_1(weights, x, y, teacher=WIDTHS[tier], student=student, alpha=alpha, t=t, kl=kl)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for tensor, gradient in zip(weights.values(), gradients, strict=True):
                tensor.sub_(LR * gradient)
    result = run.result()
    changed = {name: weights[name].detach().numpy() - start[name] for name in start}
    for name, delta in Selection.of(result.pattern, method.mode).gather(changed).items():
        np.testing.assert_allclose(result.delta[name], delta, rtol=0, atol=2e-6)
    assert result.pattern == Pattern.prefix(small_bundle.layout, WIDTHS[tier])


@pytest.mark.parametrize(
    "wrong", [{"alpha": 1.5}, {"alpha": -0.1}, {"temperature": 0}, {"direction": "both"}, {"widths": []}]
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_method("fjord+kd", wrong)
