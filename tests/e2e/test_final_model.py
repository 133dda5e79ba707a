"""Devices that keep the final model of a run, and predict with it."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

import edge_fl
from broker.model import GlobalModel
from broker.observer import Observer
from edge_fl.agent.kept_model import KeptModel, Predictor, read_model, write_model
from edge_fl.agent.opening import in_this_process
from edge_fl.agent.settings import AgentSettings
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import DataError, MemoryLimitError, StateError
from edge_fl.data.registry import load_dataset
from edge_fl.recipes.recipe import open_recipe
from edge_fl.transport.address import BrokerAddress
from edge_fl.worker.process import WorkerProcess

WIDTHS = [1000, 500]


def plain_outputs(
    weights: dict[str, NDArray[np.float32]], width: int, x: NDArray[np.float32], factor: float = 1.0
) -> NDArray[np.float64]:
    """The digits perceptron's first units, as one would write them in numpy; ``factor`` multiplies hidden layers."""
    hidden, units = x.reshape(len(x), 64).astype(np.float64), -(-width * 32 // 1000)
    for layer in ("1", "3", "5"):
        hidden = hidden @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        hidden = np.maximum(factor * hidden, 0) * (np.arange(32) < units) if layer != "5" else hidden
    return hidden


@pytest.mark.parametrize(
    ("method", "parameters", "factors"),
    [
        ("fjord", {"widths": WIDTHS}, [1.0, 1.0]),
        pytest.param("heterofl", {"levels": ["a", "b"]}, [1.0, 2.0], marks=pytest.mark.matrix),
    ],
    ids=["fjord", "heterofl"],
)
def test_devices_predict_with_the_final_model_at_their_width(
    system,
    digits_bundle: Bundle,
    embedded: BrokerAddress,
    tmp_path: Path,
    *,
    method: str,
    parameters: dict[str, object],
    factors: list[float],
) -> None:
    def device(number: int, *, keep: bool) -> edge_fl.Device:
        state = tmp_path / f"state-{number}"
        data = f"digits:{number}/3"
        return edge_fl.Device(
            str(embedded), data, id=f"d{number}", state=state, once=True, tier=number % 2, keep_model=keep
        )

    devices = [device(number, keep=number < 2) for number in range(3)]
    threads = [threading.Thread(target=device.run, daemon=True) for device in devices]
    for thread in threads:
        thread.start()
    config = system.config(method, rounds=2, min_clients=3, parameters=parameters)
    done = system.coordinate(config, tmp_path / "run", embedded, Observer())
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

    weights, x = load_file(done.weights), load_dataset("digits").test.x
    for number, width in enumerate(WIDTHS):
        outputs = devices[number].predict(x)
        expected = plain_outputs(weights, width, x, factors[number])
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(devices[number].predict(x[:7]), outputs[:7])
        again = Predictor(settings(tmp_path / f"state-{number}"), open=in_this_process())
        assert (again.run, again.width) == (config.run, width / 1000)
        np.testing.assert_array_equal(again(x), outputs)
    kept = [read_model(tmp_path / f"state-{number}") for number in range(3)]
    assert kept[0] is not None
    assert kept[1] is not None
    assert kept[2] is None
    assert len(kept[1].frame) < 0.6 * len(kept[0].frame)  # no device fetches units that it cannot use
    with pytest.raises(StateError, match="keeps no model: run the device with keep_model"):
        devices[2].predict(x)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.zeros((3, 64), np.float32), r"shape \(N, 1, 8, 8\), not \(3, 64\)"),
        (np.zeros((0, 1, 8, 8), np.float32), r"not \(0, 1, 8, 8\)"),
        (np.array("no"), r"not \(\)"),
        (np.full((1, 1, 8, 8), "no"), "takes inputs of float32, not <U2"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    digits_bundle: Bundle, tmp_path: Path, x: NDArray[np.float32], sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        predictor(digits_bundle, tmp_path)(x)


def test_programs_that_predict_have_a_process_of_their_own(digits_bundle: Bundle, tmp_path: Path) -> None:
    """One that is killed costs the call, and the next is answered."""
    found, x = predictor(digits_bundle, tmp_path), load_dataset("digits").test.x
    outputs = found(x)
    work = found._work
    assert isinstance(work, WorkerProcess)
    assert work.confinement.memory
    assert work._running is not None
    os.kill(work._running._process.pid, signal.SIGKILL)
    with pytest.raises(MemoryLimitError, match="SIGKILL"):
        found(x)
    np.testing.assert_array_equal(found(x), outputs)
    found.close()
    assert not work.resident()


def test_threads_that_come_and_go_may_predict_at_once(digits_bundle: Bundle, tmp_path: Path) -> None:
    found, x = predictor(digits_bundle, tmp_path), load_dataset("digits").test.x
    expected = found(x)
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            assert all(np.array_equal(outputs, expected) for outputs in pool.map(found, [x] * 6))
    found.close()


def test_outputs_that_have_no_room_come_in_parts(
    digits_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, x = predictor(digits_bundle, tmp_path), load_dataset("digits").test.x
    expected = found(x)
    monkeypatch.setattr("edge_fl.worker.process._ROOM", 20 * 10 * 4)
    np.testing.assert_array_equal(found(x), expected)
    found.close()


def test_a_damaged_model_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model.msgpack").write_bytes(b"\x85\xa3run")
    with pytest.raises(StateError, match=r"model\.msgpack' is damaged"):
        Predictor(settings(tmp_path))


def predictor(bundle: Bundle, state: Path) -> Predictor:
    """Of the bundle's own weights."""
    model = GlobalModel(bundle.layout, bundle.weights(), recipe=open_recipe("fedavg", {}), run="r")
    write_model(state, KeptModel("r", bundle.digest, 1000, 1000, model.narrowed_frame(model.weights, 1000)))
    (state / "bundles").mkdir()
    (state / "bundles" / bundle.digest).symlink_to(bundle.root)
    return Predictor(settings(state))


def settings(state: Path) -> AgentSettings:
    return AgentSettings(broker=BrokerAddress("127.0.0.1", 1), client="d", state=state)
