"""Steps that are timed before any task is set."""

import pytest

from broker.tiers import MeasuredTiers
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.runs.config import RunConfig
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.rehearsal import rehearse
from edge_fl.wire.messages import Task

SAMPLES = client_samples(DataSpec.parse("digits:0/10"))


def rehearsals(bundle: Bundle, method: str, parameters: dict[str, object], batch: int = 20) -> tuple[Task, ...]:
    config = RunConfig(
        run="run",
        method=method,
        parameters=parameters,
        rounds=3,
        clients_per_round=1,
        local_steps=10,
        batch=batch,
        lr=1e9,  # which no rehearsal takes
        seed=0,
        tiers="auto",
    )
    return MeasuredTiers(config, bundle.layout).rehearsals


@pytest.mark.parametrize(
    ("method", "parameters", "tiers"),
    [
        ("fedavg+topk", {}, 1),
        ("feddrop", {"dropout": [0, 500]}, 2),
        ("afd", {"dropout": [500]}, 1),
        ("fedmp", {"dropout": [500]}, 1),
        ("fedmp", {"dropout": [200, 500], "ratio": "bandit"}, 2),
        ("fedbiad", {"dropout": [500]}, 1),
        ("fjord", {"widths": [1000, 500]}, 2),
        ("efd", {"widths": [1000, 500]}, 2),
        ("heterofl", {"levels": ["a", "b"]}, 2),
    ],
)
def test_every_method_has_steps_that_can_be_timed(
    digits_bundle: Bundle, method: str, parameters: dict[str, object], tiers: int
) -> None:
    runtime, tasks = open_runtime("onnx", digits_bundle), rehearsals(digits_bundle, method, parameters)
    assert len(tasks) == tiers
    for task in tasks:
        assert 0 < rehearse(task, client="a", runtime=runtime, samples=SAMPLES) < 1


def test_a_step_that_there_is_no_program_for_is_told(digits_bundle: Bundle) -> None:
    runtime = open_runtime("executorch", digits_bundle)  # whose programs are of batch 20
    (task,) = rehearsals(digits_bundle, "fedavg", {}, batch=7)
    with pytest.raises(RuntimeMissingError):
        rehearse(task, client="a", runtime=runtime, samples=SAMPLES)
