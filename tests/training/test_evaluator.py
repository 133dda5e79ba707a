import numpy as np
import pytest

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RunError
from edge_fl.data.registry import load_dataset
from edge_fl.metrics.classification import TopK
from edge_fl.training.evaluator import Evaluator


@pytest.mark.parametrize(("width", "units"), [(1000, 32), (400, 13)])
def test_the_score_of_a_model_is_that_of_its_outputs(width: int, units: int, digits_bundle: Bundle) -> None:
    """A padded tail (360 samples in batches of 200) counts for nothing, nor do units beyond the width."""
    digits, weights = load_dataset("digits"), digits_bundle.weights()
    score = Evaluator(digits_bundle, digits.test, (TopK(),)).score(weights, width)
    assert score is not None
    hidden = digits.test.x.reshape(360, 64)
    for layer in ("1", "3", "5"):
        hidden = hidden @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        hidden = np.maximum(hidden, 0) * (np.arange(32) < units) if layer != "5" else hidden
    logs = hidden - np.log(np.exp(hidden).sum(axis=1, keepdims=True))
    assert score.scores["accuracy"] == pytest.approx((hidden.argmax(axis=1) == digits.test.y).mean())
    assert score.loss == pytest.approx(-logs[np.arange(360), digits.test.y].mean(), rel=1e-5)


def test_a_loss_that_is_not_finite_is_refused(digits_bundle: Bundle) -> None:
    weights = digits_bundle.weights()
    weights["5.bias"] = np.full_like(weights["5.bias"], np.nan)
    with pytest.raises(RunError, match="held-out data is nan; lower the step size"):
        Evaluator(digits_bundle, load_dataset("digits").test).score(weights)
