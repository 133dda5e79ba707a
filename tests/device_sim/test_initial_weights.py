"""A run that starts from another run's weights: by way of them, after a kill, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import edge_fl
from broker.initial_weights import keep_initial_weights
from broker.observer import Observer
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.runs.run import Run
from tests.device_sim.test_best import simulation
from tests.device_sim.test_resume import Stop, StopsAfter


@pytest.fixture(scope="module")
def first(torch_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "run"
    simulation(torch_bundle, folder, rounds=2, lr=0.1).run()
    return folder


def bits(path: Path) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in load_file(path).items()}


def test_a_run_starts_where_another_ended(torch_bundle: Bundle, first: Path, tmp_path: Path) -> None:
    begun = simulation(torch_bundle, tmp_path / "second", initial_weights=str(first), lr=0.1)

    assert {name: tensor.tobytes() for name, tensor in begun.weights.items()} == bits(
        first / "weights.safetensors"
    )
    begun.run()
    plain = simulation(torch_bundle, tmp_path / "plain", lr=0.1).run()
    assert bits(tmp_path / "second" / "weights.safetensors") != bits(plain.weights)


def test_killed_in_its_first_round_it_starts_from_the_same_without_the_other_run(
    torch_bundle: Bundle, first: Path, tmp_path: Path
) -> None:
    place = tmp_path / "given.safetensors"
    place.write_bytes((first / "weights.safetensors").read_bytes())
    options: dict[str, Any] = {"initial_weights": str(place), "rounds": 3, "lr": 0.1}
    quiet = simulation(torch_bundle, tmp_path / "quiet", **options).run()
    with pytest.raises(Stop):
        simulation(torch_bundle, tmp_path / "killed", StopsAfter(0), **options).run()
    place.unlink()

    resumed = Simulation.resume(tmp_path / "killed", observer=Observer()).run()

    assert bits(resumed.weights) == bits(quiet.weights)


def test_what_it_started_from_is_needed_until_a_round_is_done(
    torch_bundle: Bundle, first: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"initial_weights": str(first), "rounds": 3, "lr": 0.1}
    quiet = simulation(torch_bundle, tmp_path / "quiet", **options).run()
    for rounds in (0, 1):
        with pytest.raises(Stop):
            simulation(torch_bundle, tmp_path / f"killed-{rounds}", StopsAfter(rounds), **options).run()
        kept = tmp_path / f"killed-{rounds}" / "initial.safetensors"
        content = bytearray(kept.read_bytes())
        content[-3] ^= 1
        kept.write_bytes(content)

    with pytest.raises(
        StateError, match=r"initial.safetensors', from which the run starts, is damaged: restore it"
    ):
        Simulation.resume(tmp_path / "killed-0", observer=Observer())
    (tmp_path / "killed-0" / "initial.safetensors").unlink()
    with pytest.raises(StateError, match=r"cannot be read \(No such file or directory\): restore it"):
        Simulation.resume(tmp_path / "killed-0", observer=Observer())
    resumed = Simulation.resume(tmp_path / "killed-1", observer=Observer()).run()
    assert bits(resumed.weights) == bits(quiet.weights)


def test_a_second_run_does_not_touch_what_the_first_started_from(
    torch_bundle: Bundle, first: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"initial_weights": str(first), "rounds": 2, "lr": 0.1}
    run = simulation(torch_bundle, tmp_path / "run", **options).run()
    config = Run.open(tmp_path / "run").config
    others = {name: tensor + 1 for name, tensor in torch_bundle.weights().items()}

    with pytest.raises(StateError, match="already holds a run"):
        keep_initial_weights(tmp_path / "run", config, others)
    assert bits(run.weights.with_name("initial.safetensors")) == bits(first / "weights.safetensors")


@pytest.mark.parametrize("place", ["x" * 5000, "a\0b", "/dev/zero"])
def test_a_place_that_is_no_file_is_refused(place: str, torch_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        simulation(torch_bundle, tmp_path / "run", initial_weights=place)


def test_python_takes_a_run(torch_bundle: Bundle, first: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": 4, "fraction": 1, "rounds": 1, "trainer": "stacked"}
    by_run = edge_fl.simulate(
        torch_bundle, initial_weights=edge_fl.Run.open(first), output=tmp_path / "run", **options
    )
    by_file = edge_fl.simulate(
        torch_bundle, initial_weights=first / "weights.safetensors", output=tmp_path / "file", **options
    )

    assert {n: t.tobytes() for n, t in by_run.weights.items()} == {
        n: t.tobytes() for n, t in by_file.weights.items()
    }
    assert by_run.config.initial_weights == str(first)


def altered(weights: dict[str, np.ndarray], **changes: Any) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in (weights | changes).items() if tensor is not None}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda name, _: {name: None}, "they lack '"),
        (lambda *_: {"zz.other": np.zeros(3, np.float32)}, "they hold 'zz.other'"),
        (lambda name, tensor: {name: tensor[:1]}, r"float32 of shape \(1"),
        (lambda name, tensor: {name: tensor.astype(np.float64)}, "as float64 of shape"),
        (lambda name, tensor: {name: np.full_like(tensor, np.nan)}, "hold NaN or infinity in"),
    ],
)
def test_weights_of_another_model_are_refused(
    make: Any, words: str, torch_bundle: Bundle, first: Path, tmp_path: Path
) -> None:
    weights = load_file(first / "weights.safetensors")
    name = min(weights)
    save_file(altered(weights, **make(name, weights[name])), tmp_path / "odd.safetensors")

    with pytest.raises(ConfigError, match=words):
        simulation(torch_bundle, tmp_path / "run", initial_weights=str(tmp_path / "odd.safetensors"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [None, b"", b"\x10" * 100, b"\x02\0\0\0\0\0\0\0{}"])
def test_what_holds_no_weights_is_refused(content: bytes | None, torch_bundle: Bundle, tmp_path: Path) -> None:
    given = tmp_path / "given"
    if content is None:
        given.mkdir()
    else:
        given.write_bytes(content)

    with pytest.raises(ConfigError, match=r"initial weights '.*given"):
        simulation(torch_bundle, tmp_path / "run", initial_weights=str(given))


def test_half_precision_is_refused(torch_bundle: Bundle, first: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save_tensors

    held = {
        name: torch.from_numpy(tensor).bfloat16()
        for name, tensor in load_file(first / "weights.safetensors").items()
    }
    save_tensors(held, tmp_path / "half.safetensors")

    with pytest.raises(ConfigError, match="are of type 'BF16'; give float32"):
        simulation(torch_bundle, tmp_path / "run", initial_weights=str(tmp_path / "half.safetensors"))
