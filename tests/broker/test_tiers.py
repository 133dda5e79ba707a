"""Which tier a device is asked to train in."""

import msgspec
import pytest

from broker.tiers import MeasuredTiers, open_tiers
from edge_fl.measure.models import mlp_layout
from edge_fl.runs.config import RunConfig
from edge_fl.wire.messages import PROTOCOL, Measured, Register

CONFIG = RunConfig(
    run="run",
    method="fjord",
    parameters={"widths": [250, 500, 1000]},
    rounds=1,
    clients_per_round=1,
    local_steps=10,
    batch=20,
    lr=0.1,
    seed=0,
    deadline=100.0,
    tiers="auto",
)
LAYOUT = mlp_layout(6, 8, 8, 3)
PROFILE = Register(protocol=PROTOCOL, agent="t", runtime="onnx", samples=1, tier=1)


def measured(*seconds: float | None) -> Register:
    return msgspec.structs.replace(PROFILE, measured=Measured("run", seconds))


@pytest.fixture
def tiers() -> MeasuredTiers:
    return MeasuredTiers(CONFIG, LAYOUT)


@pytest.mark.parametrize(
    ("seconds", "tier"),
    [
        ((1.0, 2.0, 4.0), 2),
        ((1.0, 2.0, 8.0), 2),
        ((1.0, 2.0, 8.01), 1),
        ((1.0, 9.0, 18.0), 0),
        ((9.0, 18.0, 36.0), 0),
        ((9.0, 8.5, 36.0), 1),  # none in time: the fastest
        ((None, 18.0, 36.0), 1),
        ((1.0, 2.0, None), 1),
    ],
)
def test_it_is_the_ablest_that_can_be_done_in_time(
    tiers: MeasuredTiers, seconds: tuple[float | None, ...], tier: int
) -> None:
    assert tiers.of("a", measured(*seconds)) == tier


def test_what_rounds_take_besides_steps_is_learned_and_forgotten(tiers: MeasuredTiers) -> None:
    profile = measured(1.0, 2.0, 4.0)
    assert tiers.of("a", profile) == 2
    tiers.took("a", profile, 2, 90.0)  # 50 seconds besides
    assert (tiers.of("a", profile), tiers.of("b", profile)) == (1, 2)
    tiers.took("a", profile, 1, 100.0)  # 80 seconds besides
    assert tiers.of("a", profile) == 0
    tiers.took("a", profile, 0, 10.0)
    assert tiers.of("a", profile) == 2


def test_otherwise_it_is_the_one_it_registered_with() -> None:
    fixed = open_tiers(msgspec.structs.replace(CONFIG, tiers="registered"), LAYOUT)
    assert fixed.of("a", measured(1.0, 2.0, 4.0)) == 1
    assert not fixed.rehearsals
    assert fixed.ready(PROFILE)


def test_rehearsals_leave_the_run_itself_as_it_is(tiers: MeasuredTiers) -> None:
    assert [task.tier for task in tiers.rehearsals] == [0, 1, 2]
    assert {task.round for task in tiers.rehearsals} == {1}
    assert not tiers.ready(PROFILE)


def test_one_that_was_started_anew_teaches_nothing_until_it_has_measured(tiers: MeasuredTiers) -> None:
    tiers.took("a", PROFILE, 2, 90.0)
    other = msgspec.structs.replace(PROFILE, measured=Measured("another-run", (9.0, 9.0, 9.0)))
    tiers.took("a", other, 2, 90.0)
    assert tiers.of("a", measured(1.0, 2.0, 4.0)) == 2
