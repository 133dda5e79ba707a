import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from broker.evaluation import Evaluator, share_right
from edge_fl.bundle import Bundle
from edge_fl.data.registry import load_dataset
from edge_fl.errors import RunError


@given(st.data())
def test_a_target_is_right_when_few_enough_outputs_come_before_it(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(3, 5), (2, 4, 5)]))
    top = data.draw(st.integers(1, 5))
    outputs = data.draw(hnp.arrays(np.float32, shape, elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0, np.inf])))
    y = data.draw(hnp.arrays(np.int64, shape[:-1], elements=st.integers(0, 4)))
    best = np.argsort(-outputs, axis=-1, kind="stable")[..., :top]
    right = (best == y[..., None]).any(axis=-1)
    expected = right if right.ndim == 1 else right.mean(axis=1)
    assert share_right(outputs, y, top).tolist() == expected.tolist()


def test_an_output_that_is_no_number_is_no_right_answer() -> None:
    outputs = np.array([[np.nan, 1.0, np.nan], [np.nan] * 3], dtype=np.float32)
    assert share_right(outputs, np.array([1, 2]), 1).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("width", "units"), [(1000, 32), (400, 13)])
def test_the_score_of_a_model_is_that_of_its_outputs(width: int, units: int, digits_bundle: Bundle) -> None:
    """A padded tail (360 samples in batches of 200) counts for nothing, nor do units beyond the width."""
    digits, weights = load_dataset("digits"), digits_bundle.weights()
    score = Evaluator(digits_bundle, digits).score(weights, width)
    hidden = digits.test.x.reshape(360, 64)
    for layer in ("1", "3", "5"):
        hidden = hidden @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        hidden = np.maximum(hidden, 0) * (np.arange(32) < units) if layer != "5" else hidden
    logs = hidden - np.log(np.exp(hidden).sum(axis=1, keepdims=True))
    assert score.accuracy == pytest.approx((hidden.argmax(axis=1) == digits.test.y).mean())
    assert score.loss == pytest.approx(-logs[np.arange(360), digits.test.y].mean(), rel=1e-5)


def test_a_loss_that_is_not_finite_is_refused(digits_bundle: Bundle) -> None:
    weights = digits_bundle.weights()
    weights["5.bias"] = np.full_like(weights["5.bias"], np.nan)
    with pytest.raises(RunError, match="held-out data is nan; lower the step size"):
        Evaluator(digits_bundle, load_dataset("digits")).score(weights)
