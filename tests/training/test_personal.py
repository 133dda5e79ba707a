"""Tensors that a device trains and keeps: against plain torch, round after round."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional

import edge_fl
from broker.model import GlobalModel
from broker.observer import Observer
from device_sim.simulation.settings import Population, TrainerSettings, World
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import ref_of
from edge_fl.core.errors import ConfigError
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.server_half import State
from edge_fl.data.batcher import batches
from edge_fl.data.partition import Kind
from edge_fl.data.registry import Samples, load_dataset
from edge_fl.methods.base import method_names
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig, SecureAggregation
from edge_fl.runs.privacy import Privacy
from edge_fl.runtimes.base import open_runtime
from edge_fl.training.evaluator import open_evaluator
from edge_fl.training.personal import personal_state, personal_tensors
from edge_fl.training.update import make_update
from edge_fl.wire.frame import Header, decode_frame, encode_frame
from edge_fl.wire.masks import encode_mask
from edge_fl.wire.messages import Task
from edge_fl.worker.work import LocalWork
from exporter.fine_tuning import train_only
from exporter.zoo import mlp

STEPS, BATCH, LR, SEED = 4, 20, 0.1, 5
WIDTHS = {"fedavg": 32, "heterofl": 16}
"""Units of each block that the second tier trains."""


def plain_round(
    weights: dict[str, torch.Tensor], samples: Samples, units: int, number: int
) -> dict[str, torch.Tensor]:
    """What a round of SGD makes of the first ``units`` of each layer of the digits' MLP."""
    first = slice(units)
    places = {
        "1.weight": (first,),
        "1.bias": (first,),
        "3.weight": (first, first),
        "3.bias": (first,),
        "5.weight": (slice(None), first),
        "5.bias": (slice(None),),
    }
    cut = {name: weights[name][place].clone().requires_grad_() for name, place in places.items()}
    stream = Stream.of(seed=SEED, purpose="batches", client="a", round=number)
    for batch in batches(samples, steps=STEPS, size=BATCH, stream=stream, whole=False):
        real = batch.weight > 0
        hidden = torch.tensor(batch.x[real]).flatten(1)
        for layer in ("1", "3"):
            hidden = functional.relu(hidden @ cut[f"{layer}.weight"].T + cut[f"{layer}.bias"])
        outputs = hidden @ cut["5.weight"].T + cut["5.bias"]
        loss = functional.cross_entropy(outputs, torch.tensor(batch.y[real]))
        gradients = torch.autograd.grad(loss, list(cut.values()))
        with torch.no_grad():
            for tensor, gradient in zip(cut.values(), gradients, strict=True):
                tensor.sub_(LR * gradient)
    trained = {name: tensor.clone() for name, tensor in weights.items()}
    for name, place in places.items():
        trained[name][place] = cut[name].detach()
    return trained


@pytest.mark.parametrize("method", list(WIDTHS))
@pytest.mark.parametrize("runtime", ["onnx", "torch_eager"])
def test_two_rounds_are_those_of_plain_torch(personal_bundle: Bundle, runtime: str, method: str) -> None:
    """The coordinator sends the first round's model again, so what the second learns more is the personal layer's."""
    layout, data = personal_bundle.layout, load_dataset("digits").train
    samples, opened = Samples(data.x[:50], data.y[:50]), open_runtime(runtime, personal_bundle)
    start = personal_bundle.weights()
    assert [tensor.name for tensor in layout.personal] == ["5.weight", "5.bias"]
    assert not start.keys() & {"5.weight", "5.bias"}
    shared = {name: torch.from_numpy(array) for name, array in start.items()}
    own = {name: torch.tensor(array) for name, array in personal_bundle.frozen.personal.items()}
    parameters: dict[str, Any] = {}
    assigned: dict[str, Any] = {}
    if method == "heterofl":
        parameters = {"levels": ["a", "b"], "scale": False, "mask": False}
        mask, pattern = encode_mask(Pattern.prefix(layout, 500))
        assigned = {"mask": mask, "pattern": pattern}
    state: State = {}
    for number in (1, 2):
        header = Header("model", run="r", round=number, version=0, layout=layout.digest, method=method)
        content = encode_frame(header, Pattern.full(layout), start)
        task = Task(
            run="r",
            round=number,
            accepted=number - 1,
            model=ref_of(content),
            method=method,
            parameters=parameters,
            steps=STEPS,
            batch=BATCH,
            lr=LR,
            seed=SEED,
            tier=1,
            **assigned,
        )
        model = decode_frame(content, layout)
        made = make_update(task, client="a", model=model, runtime=opened, samples=samples, state=state)
        update, state = decode_frame(made.frame, layout), made.state
        trained = plain_round({**shared, **own}, samples, WIDTHS[method], number)
        own = {name: trained[name] for name in own}

        assert update.values.keys() == start.keys()
        for name, kept in update.values.items():
            index = update.selection.index(layout.tensor(name))
            expected = (trained[name] - shared[name]).numpy()[index]
            np.testing.assert_allclose(kept, expected, rtol=0, atol=2e-6)
        for name, tensor in personal_tensors(personal_bundle, state).items():
            np.testing.assert_allclose(tensor, own[name].numpy(), rtol=0, atol=2e-6)


def test_what_was_remembered_of_another_model_is_not_taken(personal_bundle: Bundle) -> None:
    layout, start = personal_bundle.layout, personal_bundle.frozen.personal
    weights = {tensor.name: np.full(tensor.shape, 7, np.float32) for tensor in layout.personal}
    own = personal_tensors(personal_bundle, personal_state(layout, weights))
    assert all(np.array_equal(own[name], weights[name]) for name in weights)
    blocks = tuple(msgspec.structs.replace(block, recurrent=True) for block in layout.blocks)
    (name,) = personal_state(layout, weights)
    for state in (
        personal_state(msgspec.structs.replace(layout, blocks=blocks), weights),
        {name: np.zeros(3, np.float32)},
        {},
    ):
        found = personal_tensors(personal_bundle, state)
        assert all(np.array_equal(found[name], start[name]) for name in start)


def test_a_narrow_model_is_predicted_with_as_it_is_scored(tmp_path: Path) -> None:
    """Of a dropped unit a personal bias is left out, too, which the next personal layer would read."""
    torch.manual_seed(0)
    bundle = edge_fl.export(mlp.digits(), torch.zeros(3, 1, 8, 8), output=tmp_path, personal=["bias", "5.*"])
    model = GlobalModel(bundle.layout, bundle.weights(), recipe=open_recipe("fedavg", {}), run="r")
    own = {name: np.full(array.shape, 0.5, np.float32) for name, array in bundle.frozen.personal.items()}
    work, x = LocalWork("a", open_runtime("onnx", bundle)), load_dataset("digits").test.x[:5]
    work.keep(model.narrowed_frame(model.weights, 500), personal_state(bundle.layout, own))

    weights, hidden = {**bundle.weights(), **own}, x.reshape(5, 64)
    for layer in ("1", "3"):
        hidden = np.maximum(hidden @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"], 0)
        hidden[:, 16:] = 0
    expected = hidden @ weights["5.weight"].T + weights["5.bias"]
    np.testing.assert_allclose(work.predict(x, width=500), expected, atol=1e-5)


def test_a_coordinator_has_no_whole_model_to_score(
    personal_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig(
        method="fedavg",
        rounds=1,
        clients_per_round=1,
        parameters={},
        local_steps=1,
        batch=20,
        lr=0.1,
        seed=0,
        run="r",
    )
    assert open_evaluator(personal_bundle, config).score(personal_bundle.weights()) is None
    with pytest.raises(
        ConfigError, match=r"'5\.weight' is personal, .*: leave the test data out, .*--evaluate-on"
    ):
        open_evaluator(personal_bundle, config, samples=load_dataset("digits").test)
    with pytest.raises(ConfigError, match="scores no model that has personal tensors: leave --keep-best out"):
        open_evaluator(personal_bundle, msgspec.structs.replace(config, keep_best="accuracy"))
    assert "give --evaluate-on" in caplog.text
    assert "--test-data" not in caplog.text


ALWAYS = ("fedbiad", "fjord+kd", "fedmp")
"""Methods that train, teach and measure in ways of their own."""
OTHERS = [name for name in method_names() if name not in (*ALWAYS, "hetlora", "flexlora", "vardrop")]


@pytest.mark.parametrize("method", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.matrix) for name in OTHERS)])
def test_every_method_trains_beside_a_personal_layer(personal_bundle: Bundle, tmp_path: Path, method: str) -> None:
    """One after another in a runtime and stacked alike; what clients find is better for a layer of their own."""
    scores = []
    for trainer in ("runtime", "stacked"):
        config = RunConfig(
            method=method,
            parameters={"variance": 1e-6} if method == "fedbiad" else {},
            rounds=2,
            clients_per_round=4,
            local_steps=4,
            batch=20,
            lr=0.05,
            seed=3,
            run="r",
            evaluate_on=4,
        )
        simulation = Simulation(
            bundle=personal_bundle,
            config=config,
            population=Population(4, tiers=2, kind=Kind.parse("labels=2"), test_share=0.2),
            trainer=TrainerSettings(trainer),
            root=tmp_path / trainer,
            observer=Observer(),
        )
        last = simulation.run().rounds[-1]
        assert last.loss is None
        scores.append([score.loss for score in last.on_devices.values()])
    np.testing.assert_allclose(*scores, rtol=1e-4)


def test_a_method_that_moves_every_weight_by_itself_is_refused(personal_bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match="export the bundle without --personal"):
        edge_fl.simulate(personal_bundle, "digits", method="vardrop", clients=2, rounds=1)


@pytest.mark.parametrize("personal", [["5.*"], ["*.lora_B.*"]])
def test_ranks_are_averaged_beside_a_personal_head_and_never_halves(personal: list[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = train_only(mlp.digits(), ["lora:3:r=4", "5.*"])
    bundle = edge_fl.export(model, torch.zeros(3, 1, 8, 8), output=tmp_path / "bundle", personal=personal)
    options = {"method": "hetlora", "clients": 4, "rounds": 2, "tiers": 2, "output": tmp_path / "run"}
    if personal == ["5.*"]:
        run = edge_fl.simulate(bundle, "digits", parameters={"widths": [1.0, 0.5]}, **options)
        assert set(run.weights) == {"3.lora_A.weight", "3.lora_B.weight"}
        return
    with pytest.raises(ConfigError, match=r"averages both halves of each adapter, and of .* some are personal"):
        edge_fl.simulate(bundle, "digits", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"secure": SecureAggregation(holders=3)},
        {"privacy": Privacy("central", noise=0.1)},
        {"privacy": Privacy("local", noise=0.1)},
        pytest.param({"robust": "median"}, marks=pytest.mark.matrix),
        pytest.param({"exact_sums": True}, marks=pytest.mark.matrix),
        {"buffer": 3, "world": World("lte", steps=(0.1,), failures=0.2)},
        pytest.param({"processes": 2}, marks=pytest.mark.matrix),
    ],
    ids="-".join,
)
def test_whatever_a_run_is_asked_its_model_is_what_devices_share(
    personal_bundle: Bundle, tmp_path: Path, options: dict[str, Any]
) -> None:
    given = {"clients": 6, "fraction": 1.0, "rounds": 2, "local_steps": 2, "output": tmp_path / "run"}
    run = edge_fl.simulate(personal_bundle, "digits", **given, **options)
    start = personal_bundle.weights()
    assert run.weights.keys() == start.keys()
    assert any(not np.array_equal(run.weights[name], start[name]) for name in start)
