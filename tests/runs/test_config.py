"""The step size over a run's rounds."""

import msgspec
import numpy as np
import pytest

from broker.tasks import make_task
from edge_fl.core.content import Ref
from edge_fl.core.errors import ConfigError
from edge_fl.measure.models import mlp_layout
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig, SecureAggregation, begun
from edge_fl.runs.privacy import Privacy

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
            CONFIG,
            recipe,
            mlp_layout(6, 8, 3),
            client="c",
            tier=0,
            round=number,
            accepted=0,
            model=model,
            weights={},
        ).lr
        for number in range(1, 9)
    ]
    assert told == [0.4] * 4 + [0.04] * 2 + [0.004] * 2


def test_a_drop_is_after_the_round_that_the_fraction_says() -> None:
    for drop, rounds in ((0.29, 100), (0.58, 50), (0.57, 200), (1 / 3, 3)):
        config = msgspec.structs.replace(CONFIG, rounds=rounds, lr_drops=(drop,))
        last = round(drop * rounds)
        assert (config.lr_of(last), config.lr_of(last + 1)) == (0.4, 0.04)


def test_the_step_size_rises_evenly_and_then_drops() -> None:
    config = msgspec.structs.replace(CONFIG, rounds=8, lr_warmup=4, lr_drops=(0.75,))
    assert [config.lr_of(number) for number in range(1, 9)] == pytest.approx(
        [0.1, 0.2, 0.3, *[0.4] * 3, *[0.04] * 2]
    )


def test_statistics_are_sent_every_so_many_rounds_and_in_the_last() -> None:
    config = msgspec.structs.replace(CONFIG, rounds=8, statistics_every=3)
    assert [number for number in range(1, 9) if config.sends_statistics(number)] == [3, 6, 8]
    with pytest.raises(ConfigError, match="statistics_every must be at least 1"):
        msgspec.structs.replace(CONFIG, statistics_every=0)
    others: list[dict[str, object]] = [
        {"secure": SecureAggregation()},
        {"privacy": Privacy("local", noise=1.0)},
        {"buffer": 1},
    ]
    for other in others:
        with pytest.raises(ConfigError, match="leave --statistics-every out"):
            msgspec.structs.replace(CONFIG, statistics_every=2, **other)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("rounds", 2.5, r"'rounds' cannot be 2\.5 \(Expected `int`, got `float`\)\."),
        ("statistics_every", "2", "'statistics_every' cannot be '2'"),
        ("secure", True, r"'secure' cannot be True .*: give edge_fl\.SecureAggregation\(\)\."),
        ("lr", np.ones(2), "'lr' cannot be array"),
    ],
)
def test_what_a_record_could_not_hold_is_refused_before_it_is_written(name: str, given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RunConfig(**{**msgspec.structs.asdict(CONFIG), name: given})


@pytest.mark.parametrize("rounds", [-1, 8])
def test_the_step_size_rises_within_the_run(rounds: int) -> None:
    with pytest.raises(ConfigError, match=r"fewer rounds than the run has \(8\)"):
        msgspec.structs.replace(CONFIG, rounds=8, lr_warmup=rounds)


@pytest.mark.parametrize("drops", [(0.0,), (1.0,), (-0.5,), (float("nan"),), (0.5, 0.5), (0.75, 0.5)])
def test_drops_grow_inside_the_run(drops: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"fractions of the rounds that grow inside \(0, 1\), not"):
        msgspec.structs.replace(CONFIG, lr_drops=drops)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"evaluate_on": -1}, "on 0 devices or more, not on -1"),
        ({"evaluate_on": 1, "buffer": 1}, "leave --evaluate-on or --buffer out"),
    ],
)
def test_evaluations_on_devices_that_cannot_be(wrong: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        msgspec.structs.replace(CONFIG, **wrong)


def test_a_default_that_json_cannot_hold_is_not_kept() -> None:
    assert begun(CONFIG, {"cap": float("inf"), "floor": 0.5}).parameters == {"floor": 0.5}


def test_a_run_of_before_there_were_drops_has_none() -> None:
    config = msgspec.to_builtins(CONFIG)
    del config["lr_drops"]
    assert msgspec.convert(config, RunConfig) == msgspec.structs.replace(CONFIG, lr_drops=())


@pytest.mark.parametrize(("quorum", "needed"), [(q / 100, q) for q in range(1, 101)])
def test_a_quorum_asks_for_no_device_too_many(quorum: float, needed: int) -> None:
    assert msgspec.structs.replace(CONFIG, quorum=quorum, clients_per_round=100).needed == needed


def test_a_quorum_is_rounded_up() -> None:
    assert msgspec.structs.replace(CONFIG, quorum=0.5, clients_per_round=3).needed == 2
