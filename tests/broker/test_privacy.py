"""Differential privacy on the coordinator: clip, noise, draws, and what is refused."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from broker.client_selection import ClientSelection
from broker.model import GlobalModel
from broker.pacing import Ask, Synchronous
from broker.privacy import Lots, Mechanism
from broker.private_runs import check_private
from broker.rounds import Round
from broker.store import UnderWay
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout, Segment, Tensor
from edge_fl.core.selection import Weights
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.runs.privacy import Privacy
from edge_fl.wire.frame import Frame
from tests.broker.test_model import FEDAVG, LAYOUT, dense, named, times
from tests.broker.test_pacing import TASK, config, registered

CLIENTS = 4


def private(kind: Any = "central", *, noise: float = 0.0, **others: Any) -> RunConfig:
    settings: dict[str, Any] = {"devices": 1000, "clip": 2.0} | others.pop("of_privacy", {})
    privacy = Privacy(kind, noise=noise, **settings)
    return config(**({"clients_per_round": CLIENTS, "privacy": privacy} | others))


def model_of(run: RunConfig, seed: int = 0) -> GlobalModel:
    mechanism = Mechanism(run, LAYOUT, Lots(seed))
    return GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=FEDAVG, run="r", privacy=mechanism)


def norm(delta: Weights) -> float:
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in delta.values()))


def of_norm(size: float, seed: int, *, client: str = "c", unclipped: bool = False) -> Frame:
    delta = random_weights(LAYOUT, seed)
    frame = named(dense(FEDAVG, times(size / norm(delta), delta)), client)
    return replace(frame, header=msgspec.structs.replace(frame.header, unclipped=unclipped))


def moved(model: GlobalModel, frames: list[Frame]) -> Weights:
    """By how much a round of these updates changes the model."""
    before, total = model.weights, model.begin()
    for frame in frames:
        total.add(0, frame)
    model.apply(total)
    return {name: model.weights[name] - before[name] for name in before}


def test_the_sum_is_over_a_fixed_number_and_nobody_weighs_more() -> None:
    two = [of_norm(1.0, 1, client="a"), of_norm(1.5, 2, client="b")]
    heavy = replace(two[1], header=msgspec.structs.replace(two[1].header, samples=2**31 - 1))
    change = moved(model_of(private()), [two[0], heavy])
    for name, array in change.items():
        expected = (two[0].values[name] + two[1].values[name]) / CLIENTS
        np.testing.assert_allclose(array, expected, atol=1e-6)


def test_the_coordinator_clips_what_a_device_did_not() -> None:
    model, honest, liar = model_of(private()), of_norm(1.9, 1, client="a"), of_norm(200.0, 2, client="b")
    total = model.begin()
    for frame in (honest, liar):
        total.add(0, frame)
    assert total.clipped == {"b": pytest.approx(0.01)}
    before = model.weights
    model.apply(total)
    alone = {n: CLIENTS * (model.weights[n] - before[n]) - honest.values[n] for n in before}
    assert norm(alone) == pytest.approx(2.0, rel=1e-3)


def test_a_local_update_is_held_to_what_noise_explains() -> None:
    run = private("local", noise=0.5)
    size = sum(tensor.size for tensor in LAYOUT.parameters)
    usual, most = 2 * (1 + 0.5 * math.sqrt(size)), 2 * (1 + 0.5 * (math.sqrt(size) + 7))
    total = model_of(run).begin()
    total.add(0, of_norm(usual, 1, client="a"))
    total.add(0, of_norm(10 * most, 2, client="b"))
    assert total.clipped == {"b": pytest.approx(0.1)}


def test_a_round_without_updates_is_noise_alone_of_the_stated_deviation() -> None:
    layout = mlp_layout(784, 64, 64, 10)
    run = private(noise=1.5)
    mechanism = Mechanism(run, layout, Lots(5))
    model = GlobalModel(layout, random_weights(layout, 0), recipe=FEDAVG, run="r", privacy=mechanism)
    flat = np.concatenate([array.reshape(-1) for array in moved(model, []).values()])
    deviation = 1.5 * 2.0 / CLIENTS
    assert abs(flat.std() / deviation - 1) < 4 / math.sqrt(2 * len(flat))
    assert abs(flat.mean()) < 4 * deviation / math.sqrt(len(flat))


def test_noise_repeats_by_seed_and_round_and_never_in_a_fleet() -> None:
    run = private(noise=1.0)
    first, same = moved(model_of(run, 1), []), moved(model_of(run, 1), [])
    assert all(np.array_equal(first[name], same[name]) for name in first)
    model = model_of(run, 1)
    rounds = [moved(model, []) for _ in range(2)]
    assert norm({n: rounds[0][n] - rounds[1][n] for n in first}) > 0.1
    fleets = [
        moved(GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=FEDAVG, run="r", privacy=mechanism), [])
        for mechanism in (Mechanism(run, LAYOUT, Lots()), Mechanism(run, LAYOUT, Lots()))
    ]
    assert norm({n: fleets[0][n] - fleets[1][n] for n in first}) > 0.1


def test_statistics_stay_whatever_a_device_sends() -> None:
    axes = ((Segment(None, 1, 2),),)
    statistic = Tensor("mean", shape=(2,), rows=axes, units=axes, role="statistic")
    layout = Layout(LAYOUT.blocks, (*LAYOUT.tensors, statistic))
    mechanism = Mechanism(private(noise=1.0), layout, Lots(0))
    weights = random_weights(layout, 0)
    model = GlobalModel(layout, weights, recipe=FEDAVG, run="r", privacy=mechanism)
    frame = of_norm(1.0, 1)
    frame = replace(
        frame,
        values={**frame.values, "mean": np.ones(2, np.float32)},
        selection=replace(frame.selection, layout=layout),
    )
    assert not moved(model, [frame])["mean"].any()


def test_the_clip_follows_the_quantile_and_goes_on_where_it_was() -> None:
    norms = np.random.default_rng(0).lognormal(0.0, 0.5, size=2000)
    run = private(noise=0.5, clients_per_round=400, of_privacy={"quantile": 0.7, "clip": 20.0})
    mechanism, layout_change = Mechanism(run, LAYOUT, Lots(3)), {t.name: np.zeros(t.shape) for t in LAYOUT.tensors}
    rng, clips = np.random.default_rng(1), []
    for number in range(1, 61):
        picked = rng.choice(norms, 400)
        clips.append(mechanism.clipping.norm)
        _, noised = mechanism.close(number, layout_change, [bool(one <= clips[-1]) for one in picked])
        assert noised.clip == clips[-1]
    assert clips[-1] == pytest.approx(np.quantile(norms, 0.7), rel=0.1)
    again = Mechanism(run, LAYOUT, Lots(3))
    again.load_state_dict(mechanism.state_dict())
    assert again.clipping == mechanism.clipping


def test_counting_norms_makes_the_noise_on_sums_larger() -> None:
    """Andrew et al. 2021, Theorem 1: z_sums = (z^-2 - (2 sigma_b)^-2)^-1/2, sigma_b a twentieth of the clients."""
    layout = mlp_layout(784, 64, 64, 10)
    run = private(noise=1.5, clients_per_round=20, of_privacy={"quantile": 0.5})
    mechanism = Mechanism(run, layout, Lots(1))
    change, _ = mechanism.close(1, {t.name: np.zeros(t.shape) for t in layout.tensors}, [])
    flat = np.concatenate([array.reshape(-1) for array in change.values()])
    expected = (1.5**-2 - 2.0**-2) ** -0.5 * 2.0 / 20
    assert abs(flat.std() / expected - 1) < 4 / math.sqrt(2 * len(flat))


def test_what_devices_told_reaches_the_mechanism() -> None:
    run = private(of_privacy={"quantile": 0.5}, clients_per_round=2)
    model = model_of(run)
    total = model.begin()
    for client, within in (("a", True), ("b", True)):
        total.add(0, of_norm(1.0, 1, client=client, unclipped=within))
    applied = model.apply(total)
    assert applied.loss is None
    assert applied.noised is not None
    assert (applied.noised.clip, applied.noised.unclipped) == (2.0, 1.0)
    assert model.privacy is not None
    assert model.privacy.clipping.norm == pytest.approx(2.0 * math.exp(-0.2 * 0.5))


def test_each_device_is_drawn_by_the_same_chance_whoever_else_is() -> None:
    clients, counts = [f"c{i}" for i in range(50)], Counter[str]()
    lots = Lots(7)
    sizes = []
    for number in range(400):
        drawn = lots.draw(clients, 0.2, number)
        counts.update(drawn)
        sizes.append(len(drawn))
    assert all(abs(counts[client] / 400 - 0.2) < 5 * math.sqrt(0.16 / 400) for client in clients)
    assert abs(np.var(sizes) / (50 * 0.16) - 1) < 0.4  # of a fixed number it would be 0
    assert Lots(7).draw(clients[::-1], 0.2, 3) == lots.draw(clients, 0.2, 3)
    assert lots.draw(clients, 1.0, 1) == sorted(clients)


def synchronous(run: RunConfig) -> Synchronous:
    return Synchronous(run, ClientSelection("random", 0), Mechanism(run, LAYOUT, Lots(0)))


def test_a_private_round_asks_once_and_then_the_same_devices_again() -> None:
    run = private(quorum=0.5, of_privacy={"devices": 8})
    there, pace = registered(*(f"c{i}" for i in range(8))), synchronous(run)
    current = Round(1, 0, pace.quorum, 1.0)
    assert pace.begin(current, None, 0.0) is None
    first = pace.decide(current, there, 0.0)
    assert isinstance(first, Ask)
    assert 0 < len(first.clients) < 8
    assert current.quorum == math.ceil(len(first.clients) / 2)
    for client in first.clients:
        current.ask(client, TASK, 0.0)
    pace.decide(current, there, 11.0)  # nobody answered: it waits for devices
    second = pace.decide(current, there, 11.0)
    assert isinstance(second, Ask)
    assert second.clients == first.clients
    resumed = Round(1, 0, pace.quorum, 1.0)
    pace.begin(resumed, UnderWay(0, dict.fromkeys(first.clients, TASK), {}, Counter()), 0.0)
    assert resumed.quorum == current.quorum


def test_a_round_that_drew_nobody_closes() -> None:
    run = private(of_privacy={"devices": 10**9}, quorum=1.0)
    there, pace = registered("a", "b", "c"), synchronous(run)
    current = Round(1, 0, pace.quorum, 1.0)
    pace.begin(current, None, 0.0)
    assert pace.decide(current, there, 0.0) == Ask([], 0)
    assert pace.decide(current, there, 0.0) == "close"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("fedavg+dgc", {}, "'dgc' changes updates after the clip"),
    ("fedavg+fedpaq", {}, "'fedpaq' changes updates after the clip"),
    ("fedbiad", {}, "in 'fedbiad' devices choose units by their data"),
    ("afd", {}, "the server of 'afd' learns from what single devices report"),
    ("fedmp", {}, "the server of 'fedmp' learns"),
    ("vardrop", {}, "the server of 'vardrop' learns"),
    ("fedavg", {"parameters": {"weighting": "samples"}}, "leave the rule and the weighting out"),
    ("feddrop", {"parameters": {"rule": "mean"}}, "leave the rule and the weighting out"),
    ("fedavg", {"buffer": 2}, "leave --buffer out"),
    ("fedavg", {"robust": "median"}, "leave --robust out"),
    ("fedavg", {"secure": SecureAggregation(holders=2, cohort=4)}, "leave --secure-aggregation out"),
    ("fedavg", {"rollback": 3.0}, "leave --rollback out"),
    ("fedavg", {"samples_bound": 10.0}, "the clip bounds each device"),
    ("fedavg", {"norm_bound": 2.0}, "the clip bounds each device"),
    ("fedavg", {"max_samples": 10}, "the clip bounds each device"),
    ("fedavg", {"evaluate_on": 2}, "leave --evaluate-on out"),
    ("fedavg", {"of_privacy": {"devices": None}}, "say how many devices the fleet has"),
    ("fedavg", {"of_privacy": {"devices": 3}}, "4 clients a round cannot be asked of 3 devices"),
    ("fedavg", {"noise": 0.5, "of_privacy": {"quantile": 0.5}}, "takes more than 5 clients a round"),
]


@pytest.mark.parametrize(("recipe", "settings", "reason"), REFUSED)
def test_what_would_tell_more_is_refused_with_the_reason(
    digits_bundle: Bundle, recipe: str, settings: dict[str, Any], reason: str
) -> None:
    run = private(method=recipe, **settings)
    opened = open_recipe(recipe, run.parameters)
    with pytest.raises(ConfigError, match=reason) as raised:
        check_private(run, opened, digits_bundle.manifest)
    assert str(raised.value).endswith(".")
    assert ". " not in str(raised.value)  # a sentence


@pytest.mark.parametrize("recipe", ["fedavg", "feddrop", "fjord", "fjord+kd", "fjord+efd", "heterofl", "efd"])
@pytest.mark.parametrize("kind", ["central", "local"])
def test_patterns_that_no_data_chose_are_fine(digits_bundle: Bundle, recipe: str, kind: str) -> None:
    check_private(private(kind, method=recipe), open_recipe(recipe, {}), digits_bundle.manifest)
    plain = config(method="fedbiad+dgc", buffer=1, norm_bound=2.0)
    check_private(plain, open_recipe("fedbiad+dgc", {}), digits_bundle.manifest)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "either a noise or the epsilon"),
        ({"noise": 1.0, "epsilon": 1.0}, "either a noise or the epsilon"),
        ({"noise": -1.0}, "a number of clips"),
        ({"noise": math.inf}, "a number of clips"),
        ({"epsilon": 0.0}, "Epsilon is above 0"),
        ({"noise": 1.0, "delta": 0.0}, "Delta is a chance"),
        ({"noise": 1.0, "clip": 0.0}, "The clip is a norm"),
        ({"noise": 1.0, "devices": 0}, "1 device or more"),
        ({"noise": 1.0, "quantile": 1.0}, "quantile that the clip follows"),
        ({"noise": 1.0, "quantile": 0.5, "kind": "local"}, "leave the quantile out"),
        ({"noise": 1.0, "kind": "none"}, "central or local"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Privacy(**({"kind": "central"} | settings))
