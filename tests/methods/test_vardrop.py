"""Variational dropout: the paper's equations, and what the server makes of them, against plain references."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import nn

from broker.model import GlobalModel
from broker.observer import Observer
from broker.recipe_checks import check_recipe
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle, Optimizer
from edge_fl.core.errors import ConfigError, FrameError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout, Segment, Tensor
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection, Weights
from edge_fl.data.registry import load_dataset
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.methods.base import Job, LocalHalf, Method, open_method
from edge_fl.recipes.recipe import Recipe, open_recipe
from edge_fl.runs.config import RunConfig
from edge_fl.wire.frame import Frame, Header, decode_frame, encode_frame
from edge_fl.wire.sparse import SPARSE, encode_sent
from edge_fl.wire.values import flatten
from exporter.export import Target, export_bundle
from exporter.steps.vardrop import kl_divergence, noisy_outputs
from exporter.zoo.mlp import mlp

LAYOUT = mlp_layout(5, 8, 3)
FIRST, LAST = "layer0.weight", "layer1.weight"
SELECTION = Selection.of(Pattern.full(LAYOUT), "units")


def outputs(name: str) -> Tensor:
    axes = ((Segment(None, inner=LAYOUT.tensor(name).shape[0]),),)
    return Tensor(name, LAYOUT.tensor(name).shape[:1], axes, axes)


def local(
    method: Method, *, client: str = "a", round: int = 1, state: Mapping[str, NDArray[Any]] | None = None
) -> LocalHalf:
    noisy = (outputs(FIRST), outputs(LAST))
    return method.local(Job(LAYOUT, client, round, 3, {}, state or {}, samples=400, batch=16, output_noise=noisy))


def vardrop(**parameters: Any) -> Method:
    return open_method("vardrop", parameters)


# --- eq. (3)


def divergence(log_alpha: float) -> float:
    """KL(N(theta, alpha theta^2) || log-uniform), by numbers: E log|e| - log(alpha) / 2 + C, e ~ N(1, alpha).

    C makes it vanish as alpha grows: E log|z| of a standard normal z is -(gamma + log 2) / 2.
    """
    deviation = math.exp(log_alpha / 2)
    edges = np.linspace(-12, 12, 2_000_001)
    z = (edges[:-1] + edges[1:]) / 2  # no midpoint is where e = 0, whose logarithm is not finite
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    expected = float(np.sum(np.log(np.abs(1 + deviation * z)) * density) * (z[1] - z[0]))
    return expected - log_alpha / 2 + (np.euler_gamma + math.log(2)) / 2


@pytest.mark.parametrize("log_alpha", [-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 8.0])
def test_eq_3_approximates_the_divergence(log_alpha: float) -> None:
    """Its constant is 0.64: then both vanish as alpha grows. Molchanov et al. print 0.6358, so 0.01 is rounding."""
    approximated = float(kl_divergence(torch.tensor(log_alpha, dtype=torch.float64))) + 0.64
    assert abs(approximated - divergence(log_alpha)) < 0.02


def test_the_divergence_weighs_one_over_the_devices_samples() -> None:
    assert local(vardrop()).extra(SELECTION, 0)["kl"] == np.float32(1 / 400)
    extra = local(vardrop(kl=0.25)).extra(SELECTION, 0)
    assert extra["kl"] == np.float32(0.25 / 400)
    assert (extra["kl"].shape, extra["kl"].dtype) == ((), np.float32)


# --- eq. (2), reparameterised locally with the noise that a device draws


def test_outputs_have_the_mean_and_the_variance_of_eq_2() -> None:
    torch.manual_seed(0)
    half, layer = local(vardrop(start=[-2.0, 0.0])), nn.Linear(5, 8)
    x = torch.randn(1, 5).expand(16, 5)
    rates = torch.from_numpy(half.slots[f"log_alpha.{FIRST}"])
    drawn = []
    with torch.no_grad():
        for step in range(400):
            noise = torch.from_numpy(half.extra(SELECTION, step)[f"output_noise.{FIRST}"])
            drawn.append(noisy_outputs(layer, x, layer(x), rates=rates, noise=noise))
        mean, variance = layer(x[0]), (rates.exp() * layer.weight**2) @ (x[0] ** 2)
    sample = torch.cat(drawn).double()
    error = (variance / len(sample)).sqrt()
    assert ((sample.mean(dim=0) - mean).abs() < 5 * error).all()
    np.testing.assert_allclose(sample.var(dim=0), variance, rtol=5 * math.sqrt(2 / len(sample)))


def test_noise_is_drawn_anew_for_every_step_round_client_layer_and_sample() -> None:
    method = vardrop()
    drawn = [
        local(method, client=client, round=number).extra(SELECTION, step)
        for client, number, step in (("a", 1, 0), ("b", 1, 0), ("a", 2, 0), ("a", 1, 1))
    ]
    rows = [row for extra in drawn for row in extra[f"output_noise.{FIRST}"]]
    assert len({row.tobytes() for row in rows}) == 4 * 16
    for extra in drawn:
        assert extra[f"output_noise.{FIRST}"].shape == (16, 8)
        assert extra[f"output_noise.{LAST}"].shape == (16, 3)
        assert extra[f"output_noise.{FIRST}"][0, 0] != extra[f"output_noise.{LAST}"][0, 0]
    again = local(method).extra(SELECTION, 0)
    assert all(array.tobytes() == drawn[0][name].tobytes() for name, array in again.items())


# --- log alpha on the device


def test_all_devices_start_with_the_same_random_rates() -> None:
    rates = local(vardrop(start=[-5.0, -3.0])).slots
    assert {name: array.shape for name, array in rates.items()} == {
        f"log_alpha.{FIRST}": (8, 5),
        f"log_alpha.{LAST}": (3, 8),
    }
    every = np.concatenate([array.reshape(-1) for array in rates.values()])
    assert -5 <= every.min() < -4.8
    assert -3.2 < every.max() <= -3
    assert len(set(every.tolist())) == len(every)
    other = local(vardrop(start=[-5.0, -3.0]), client="b", round=4).slots
    assert all(array.tobytes() == other[name].tobytes() for name, array in rates.items())


def changes(rounds: int) -> list[Weights]:
    rng = np.random.default_rng(1)
    shapes = {name: array.shape for name, array in local(vardrop()).slots.items()}
    return [{n: (0.01 * rng.normal(size=s)).astype(np.float32) for n, s in shapes.items()} for _ in range(rounds)]


def test_a_devices_rates_follow_torchs_adam_through_rounds_and_restarts() -> None:
    """Minus a round's change is the gradient; nothing lives on but the state."""
    method, state = vardrop(rate_lr=0.05, betas=[0.8, 0.99], eps=1e-6), {}
    start = local(method).slots
    reference = {n: torch.from_numpy(np.array(array)).double().requires_grad_() for n, array in start.items()}
    optimizer = torch.optim.Adam(reference.values(), lr=0.05, betas=(0.8, 0.99), eps=1e-6)
    for number, change in enumerate(changes(12), start=1):
        half = local(method, round=3 * number, state=state)
        before = {name: np.array(array) for name, array in half.slots.items()}
        trained = {name: array + change[name] for name, array in before.items()}
        for name, parameter in reference.items():
            parameter.grad = torch.from_numpy((before[name] - trained[name]).astype(np.float64))
        optimizer.step()
        half.trained(trained)
        state = {name: np.array(array) for name, array in half.state().items()}
        assert all(array.tobytes() == half.slots[name].tobytes() for name, array in before.items())
    moved = local(method, state=state).slots
    for name, parameter in reference.items():
        np.testing.assert_allclose(moved[name], parameter.detach().numpy(), rtol=0, atol=2e-6)
        assert np.abs(moved[name] - start[name]).max() > 0.1


@pytest.mark.parametrize(("rate_lr", "rounds"), [(0.03, 558), (0.1, 150)])
def test_a_weight_that_the_divergence_alone_moves_is_dropped_after_as_many_rounds(
    rate_lr: float, rounds: int
) -> None:
    """As the parameters' text says, for 15,000 samples."""
    method, name = vardrop(rate_lr=rate_lr), f"log_alpha.{LAST}"
    state: dict[str, NDArray[Any]] = {name: np.full((1, 1), -4, np.float32)}
    for _ in range(rounds):
        half = local(method, state=state)
        assert half.sent[LAST].all()
        log_alpha = torch.from_numpy(half.slots[name]).double().requires_grad_()
        (gradient,) = torch.autograd.grad(kl_divergence(log_alpha) / 15_000, log_alpha)
        half.trained({name: half.slots[name] - gradient.numpy()})
        state = dict(half.state())
    assert not local(method, state=state).sent[LAST].any()


def test_averaging_leaves_a_devices_rates_as_they_were_trained() -> None:
    half = local(vardrop(server="average"))
    trained = {name: array + changes(1)[0][name] for name, array in half.slots.items()}
    half.trained(trained)
    for name, array in trained.items():
        np.testing.assert_allclose(half.state()[name], array, rtol=0, atol=1e-6)


def test_what_is_sent_has_a_rate_up_to_the_threshold_and_no_rate_is_sent() -> None:
    """Eq. (4), by the alpha that the gradients were computed with."""
    rates = {f"log_alpha.{n}": np.zeros(LAYOUT.tensor(n).shape, np.float32) for n in (FIRST, LAST)}
    rates[f"log_alpha.{FIRST}"][2, 1:4] = 2.9, 3.0, 3.1
    half = local(vardrop(), state=rates)
    half.trained({name: array + 10 for name, array in rates.items()})
    assert set(half.sent) == {FIRST, LAST}
    assert half.sent[LAST].all()
    assert np.argwhere(~half.sent[FIRST]).tolist() == [[2, 3]]
    assert np.argwhere(~local(vardrop(threshold=2.95), state=rates).sent[FIRST]).tolist() == [[2, 2], [2, 3]]


@pytest.mark.parametrize("dropped", [0, 1, 150_000, 260_000])
def test_an_update_of_the_fmnist_perceptron_is_as_large_as_the_file_says(fmnist: Layout, dropped: int) -> None:
    n = sum(tensor.size for tensor in fmnist.parameters)
    sent = np.ones(n, np.bool_)
    sent[np.random.default_rng(0).permutation(n)[:dropped]] = False
    size = len(encode_sent(np.ones(n, np.float32), sent))
    assert n == 269_322
    assert 0 <= size - (5 + 4 * (n - dropped)) <= (n / 8 if dropped else 0)


# --- the server


def update(client: str, delta: Weights, sent: Mapping[str, NDArray[np.bool_]], *, samples: int = 10) -> Frame:
    pattern, selection = Pattern.full(LAYOUT), Selection.of(Pattern.full(LAYOUT), "rows")
    every = [sent.get(t.name, np.ones(t.shape, np.bool_)).reshape(-1) for t in LAYOUT.parameters]
    header = Header(
        kind="update",
        run="r",
        round=1,
        version=0,
        layout="",
        method="vardrop",
        mode="rows",
        client=client,
        samples=samples,
        values=SPARSE,
    )
    section = encode_sent(flatten(selection, delta), np.concatenate(every))
    return decode_frame(encode_frame(header, pattern, delta, section), LAYOUT)


def mask(name: str, *dropped: tuple[int, int]) -> dict[str, NDArray[np.bool_]]:
    sent = np.ones(LAYOUT.tensor(name).shape, np.bool_)
    for place in dropped:
        sent[place] = False
    return {name: sent}


def start(recipe: Recipe) -> GlobalModel:
    return GlobalModel(LAYOUT, random_weights(LAYOUT, 0), recipe=recipe, run="r")


def closed(model: GlobalModel, updates: list[Frame]) -> None:
    """A round of these updates, all trained from the model as it is."""
    total = model.begin()
    for frame in updates:
        total.add(0, replace(frame, header=msgspec.structs.replace(frame.header, version=model.version)))
    model.apply(total)


def test_the_average_is_over_all_devices_alike_and_what_is_not_sent_is_zero() -> None:
    model = start(open_recipe("vardrop", {"server": "average"}))
    before, deltas = model.weights, [random_weights(LAYOUT, 1 + i) for i in range(3)]
    masks = [mask(FIRST, (0, 0), (1, 1)), mask(FIRST, (1, 1)), mask(FIRST, (1, 1))]
    closed(model, [update(f"c{i}", deltas[i], masks[i], samples=1 + 100 * i) for i in range(3)])
    for name, old in before.items():
        held = [delta[name] * masks[i].get(name, 1) for i, delta in enumerate(deltas)]
        np.testing.assert_allclose(model.weights[name], old + np.mean(held, axis=0), rtol=0, atol=1e-6)
    assert model.weights[FIRST][1, 1] == before[FIRST][1, 1]


def test_the_servers_adam_is_torchs_and_a_recalled_one_goes_on() -> None:
    parameters = {"lr": 0.02, "betas": [0.7, 0.9], "eps": 1e-3}
    model = start(open_recipe("vardrop", parameters))
    reference = {name: torch.from_numpy(array.astype(np.float64)) for name, array in model.weights.items()}
    optimizer = torch.optim.Adam(
        [tensor.requires_grad_() for tensor in reference.values()], lr=0.02, betas=(0.7, 0.9), eps=1e-3
    )
    for number in range(8):
        deltas = [random_weights(LAYOUT, 10 * number + i) for i in range(2)]
        for name, tensor in reference.items():
            tensor.grad = torch.from_numpy(-(deltas[0][name].astype(np.float64) + deltas[1][name]) / 2)
        optimizer.step()
        closed(model, [update(f"c{i}", delta, {}) for i, delta in enumerate(deltas)])
        model = restarted(model, parameters)
    for name, tensor in reference.items():
        np.testing.assert_allclose(model.weights[name], tensor.detach().numpy(), rtol=0, atol=1e-6)


def test_the_majority_of_each_devices_last_mask_prunes_what_a_run_gives_and_nothing_else() -> None:
    weights = random_weights(LAYOUT, 0)
    model = start(open_recipe("vardrop", {}))
    assert model.final_weights is model.weights  # before the first round
    closed(
        model,
        [
            update("a", weights, mask(FIRST, (0, 0), (1, 0), (2, 0))),
            update("b", weights, mask(FIRST, (0, 0), (1, 0))),
            update("c", weights, mask(FIRST, (2, 0))),
            update("d", weights, mask(FIRST, (0, 0), (3, 0))),
        ],
    )
    assert dropped(model) == [(0, 0)]  # two of four, at (1, 0) and (2, 0), are no majority
    closed(model, [update("c", weights, mask(FIRST, (1, 0))), update("d", weights, {})])
    assert dropped(model) == [(1, 0)]
    model = restarted(model, {})
    assert dropped(model) == [(1, 0)]
    closed(model, [update("a", weights, {})])
    assert dropped(model) == []


def restarted(model: GlobalModel, parameters: dict[str, Any]) -> GlobalModel:
    """As a run that was interrupted goes on."""
    learned = {name: np.array(array) for name, array in model.state_dict().items()}
    again = start(open_recipe("vardrop", parameters))
    again.load_state_dict(model.version, model.weights, learned)
    return again


def dropped(model: GlobalModel) -> list[tuple[int, int]]:
    """Where the first of the final weights is zero; everything else is as it was."""
    assert all(array.all() for array in model.weights.values())
    for name, array in model.final_weights.items():
        assert np.array_equal(array[array != 0], model.weights[name][array != 0])
        assert name == FIRST or array.all()
    return [tuple(place) for place in np.argwhere(model.final_weights[FIRST] == 0).tolist()]


# --- refusals


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": math.nan},
        {"start": [0.0, -1.0]},
        {"kl": -1},
        {"lr": 0},
        {"rate_lr": -0.1},
        {"eps": 0},
        {"betas": [0.9, 1.0]},
        {"server": "momentum"},
        {"shared": True},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        open_method("vardrop", wrong)


def test_a_compressor_on_top_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match="'vardrop' tells the server which entries it sends, and 'topk' could not"
    ):
        open_recipe("vardrop+topk", {})


def config(**more: Any) -> RunConfig:
    settings = {"parameters": {}, "rounds": 3, "local_steps": 1, "batch": 20, "lr": 1.0, **more}
    return RunConfig(run="test", method="vardrop", clients_per_round=3, seed=5, **settings)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = Target("noisy", "digits", Input((1, 8, 8), "float32"), 10, ("onnx",), variants=("vardrop",))
    return export_bundle(mlp(inputs=64, hidden=6, classes=10), target, tmp_path_factory.mktemp("noisy") / "bundle")


def test_a_bundle_without_the_step_is_refused_with_the_option_that_exports_it(bundle: Bundle) -> None:
    plain = tuple(msgspec.structs.replace(p, variant="plain") for p in bundle.manifest.programs["onnx"])
    manifest = msgspec.structs.replace(bundle.manifest, programs={"onnx": plain})
    with pytest.raises(ConfigError, match=r"no 'vardrop' program .* export it with --variant vardrop"):
        check_recipe(Bundle(bundle.root, manifest), open_recipe("vardrop", {}), config())


# --- a whole run


def run(bundle: Bundle, root: Path, settings: RunConfig) -> tuple[list[Any], Weights, Weights]:
    """The rounds' metrics, the weights that were given, and those of the last checkpoint."""
    simulation = Simulation(
        bundle=bundle,
        config=settings,
        population=Population(3),
        trainer=TrainerSettings("runtime"),
        root=root,
        observer=Observer(),
    )
    summary = simulation.run()
    return list(summary.rounds), load_file(summary.weights), dict(simulation.weights)


def test_a_run_gives_a_pruned_model_and_sends_less_the_more_is_dropped(bundle: Bundle, tmp_path: Path) -> None:
    parameters = {"rate_lr": 0.3, "start": [1.0, 3.0], "lr": 0.01, "kl": 4.0}
    rounds, given, last = run(bundle, tmp_path / "run", config(parameters=parameters, rounds=20))
    sizes = [min(metrics.uplink.values()) for metrics in rounds]
    dense = 4 * bundle.layout.size
    assert dense < sizes[0] < dense + 400
    assert sizes[-1] < 0.6 * sizes[0]
    noisy = {t.name for t in bundle.manifest.output_noise}
    for name, array in given.items():
        assert np.array_equal(array[array != 0], last[name][array != 0])
        assert (name in noisy) == bool((array == 0).any())
    shares = [float((given[name] != 0).mean()) for name in noisy]
    assert 0.01 < min(shares) <= max(shares) < 0.9
    checkpoint = load_file(tmp_path / "run" / "checkpoints" / "00020.safetensors")
    assert all(np.array_equal(checkpoint[name], array) for name, array in last.items())


def test_it_learns_as_fedsgd_does(bundle: Bundle, tmp_path: Path) -> None:
    settings = config(parameters={"lr": 0.02, "kl": 0.1}, rounds=60, batch=100)
    rounds, _, _ = run(bundle, tmp_path / "run", settings)
    assert rounds[-1].scores["accuracy"] > 0.6


def test_a_frame_of_another_encoding_is_refused(bundle: Bundle) -> None:
    """A dense update would tell no mask."""
    from broker.acceptance import Expected, check_update

    dataset = load_dataset("digits")
    recipe, weights = open_recipe("vardrop", {}), bundle.weights()
    header = Header("update", "r", 1, 0, "", "vardrop", mode="rows", client="a", samples=5)
    frame = encode_frame(header, Pattern.full(bundle.layout), weights)
    samples = len(dataset.train.y)
    expected = Expected(bundle.layout, recipe, "r", 1, 0, "a", 0, samples, 1000.0)
    with pytest.raises(FrameError) as caught:
        check_update(frame, expected)
    assert caught.value.code == "method"


def test_a_bundle_with_an_optimiser_of_its_own_is_refused(bundle: Bundle) -> None:
    method = open_method("vardrop", {})
    assert method.unfit(bundle.manifest) is None
    for optimizer in (Optimizer(momentum=0.9), Optimizer(name="adam")):
        manifest = msgspec.structs.replace(bundle.manifest, optimizer=optimizer)
        assert "--optimizer sgd" in (method.unfit(manifest) or "")
