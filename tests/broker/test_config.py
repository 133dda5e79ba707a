"""The step size over a run's rounds."""

import msgspec
import pytest

from broker.config import RunConfig
from broker.tasks import make_task
from edge_fl.bench.models import mlp_layout
from edge_fl.errors import ConfigError
from edge_fl.recipe import open_recipe
from edge_fl.wire.messages import Ref

CONFIG = RunConfig(
    run="run",
    method="fedavg",
    parameters={},
    rounds=8,
    clients_per_round=1,
    local_steps=1,
    batch=20,
    lr=0.4,
    seed=0,
    lr_drops=(0.5, 0.75),
)


def test_a_device_is_told_a_tenth_of_the_step_size_after_each_drop() -> None:
    recipe, model = open_recipe("fedavg", {}), Ref("0" * 64, 1)
    told = [
        make_task(
            CONFIG, recipe, mlp_layout(6, 8, 3), client="c", tier=0, round=number, accepted=0, model=model
        ).lr
        for number in range(1, 9)
    ]
    assert told == [0.4] * 4 + [0.04] * 2 + [0.004] * 2


@pytest.mark.parametrize("drop", [0.0, 1.0, -0.5, float("nan")])
def test_a_drop_is_inside_the_run(drop: float) -> None:
    with pytest.raises(ConfigError, match=r"after a fraction of the rounds in \(0, 1\)"):
        msgspec.structs.replace(CONFIG, lr_drops=(0.5, drop))
