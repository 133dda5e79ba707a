"""Attackers among simulated clients, and the page of what they do."""

import json
from collections.abc import Callable
from contextlib import closing

import msgspec
import numpy as np
import pytest

from benchmarks.attack import bench_attack
from benchmarks.grid import Choice, Filling
from benchmarks.hostile import ATTACKS, HostileSettings, hostile_among
from device_sim.simulation.trainer import Call
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.pattern import Pattern
from edge_fl.data.registry import load_dataset
from edge_fl.wire.frame import Header, decode_frame, encode_frame
from tests.broker.test_pacing import TASK


def calls(tiers: int, count: int) -> list[Call]:
    data = load_dataset("digits").train
    return [
        Call(
            task=msgspec.structs.replace(TASK, tier=i % tiers, steps=2, batch=8),
            client=f"client-{i:02d}",
            samples=data.take(np.arange(40 * i, 40 * i + 40)),
            state={},
        )
        for i in range(count)
    ]


def test_attackers_are_spread_over_tiers_or_all_of_one() -> None:
    every = calls(4, 20)
    tiers = {call.client: call.task.tier for call in every}
    spread = hostile_among(every, 0.2)
    assert sorted(tiers[client] for client in spread) == [0, 1, 2, 3]
    assert {tiers[client] for client in hostile_among(every, 0.2, tier=2)} == {2}
    assert len(hostile_among(every, 0.2, tier=2)) == 4
    assert not hostile_among(every, 0.0)


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_an_attack_changes_what_attackers_send_and_nothing_else(digits_bundle: Bundle, attack: str) -> None:
    layout, every = digits_bundle.layout, calls(1, 10)
    model = encode_frame(
        Header("model", run="r", round=1, version=0, layout=layout.digest, method="fedavg"),
        Pattern.full(layout),
        digits_bundle.weights(),
    )
    settings = HostileSettings("stacked", attack=attack, share=0.2)
    hostile = hostile_among(every, 0.2)
    with closing(settings.open(digits_bundle)) as trainer:
        found = list(trainer.updates(model, every, len(every)))
        again = list(trainer.updates(model, every, len(every)))
    plain = HostileSettings("stacked", attack=attack, share=0.0)
    with closing(plain.open(digits_bundle)) as trainer:
        honest = list(trainer.updates(model, every, len(every)))
    assert [one.frame for one in found] == [one.frame for one in again]
    for call, ours, theirs in zip(every, found, honest, strict=True):
        assert (ours.frame != theirs.frame) == (call.client in hostile)
    if attack == "sign-flip":
        first = next(i for i, call in enumerate(every) if call.client in hostile)
        lied, told = (decode_frame(one[first].frame, layout) for one in (found, honest))
        for name, array in told.values.items():
            assert np.array_equal(lied.values[name], np.float32(-5) * array)


@pytest.mark.matrix
def test_the_page_holds_every_defence_against_the_same_clean_run(
    tiny: Callable[..., Choice], filling: Callable[..., Filling]
) -> None:
    choice, how = tiny("fedavg"), filling()
    defences = ("none", "default", "median")
    result = bench_attack(choice, how, ["sign-flip"], [0.25], defences)
    rows = json.loads(result.json())["rows"]
    assert [(row["attack"], row["defence"]) for row in rows] == [
        ("none", "none"),
        ("none", "default"),
        *[("sign-flip", name) for name in defences],
    ]
    assert rows[0]["lost (points)"] == 0
    with pytest.raises(ConfigError, match="There is no defence 'prayer'"):
        bench_attack(choice, how, ["sign-flip"], [0.25], ["prayer"])
