"""What a round of local training refuses to hand on."""

import numpy as np
import pytest

from edge_fl.core.errors import RunError
from edge_fl.data.registry import Samples
from edge_fl.methods.base import Job, open_method
from edge_fl.training.local_run import LocalRun, LocalSettings
from tests.layouts import TWO_PARAMETERS


def trained(name: str, value: float) -> LocalRun:
    """A run of one step, in which an entry of a tensor became ``value``."""
    weights = {tensor.name: np.ones(3, dtype=np.float32) for tensor in TWO_PARAMETERS.tensors}
    job = Job(layout=TWO_PARAMETERS, client="client-1", round=1, seed=0, weights=weights, state={})
    samples = Samples(np.zeros((2, 1), dtype=np.float32), np.zeros(2, dtype=np.int64))
    run = LocalRun(
        method=open_method("fedavg", {}),
        job=job,
        samples=samples,
        settings=LocalSettings(steps=1, batch=2, lr=0.1),
        personal={},
    )
    run.stepped(0.5)
    run.full.weights[name][1] = value
    return run


@pytest.mark.parametrize("name", ["w", "v", "var"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_longer_finite_is_no_update(name: str, value: float) -> None:
    with pytest.raises(
        RunError, match=r"The weights of client 'client-1' are no longer finite; lower the step size"
    ):
        trained(name, value).result()


def test_what_has_gone_too_far_is_no_update_unless_it_is_a_statistic() -> None:
    with pytest.raises(RunError, match=r"The training of client 'client-1' changed 'v' by 2\.0e\+03"):
        trained("v", 2001.0).result()
    assert trained("v", 1000.0).result().delta["v"].tolist() == [0, 999, 0]
    assert trained("var", 2001.0).result().delta["var"].tolist() == [0, 2000, 0]
