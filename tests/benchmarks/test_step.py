"""What is timed is the same training on both sides; the times themselves are no test's business."""

from pathlib import Path

import numpy as np
import pytest
import torch

from edge_fl.core.errors import ModelError, RuntimeMissingError
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from edge_fl.measure.timing import turns
from edge_fl.runtimes.base import open_runtime
from exporter.derive import derive
from exporter.measure.cases import BATCH, case_names, find_case
from exporter.measure.eager import eager_step, sized
from exporter.measure.exported import chosen_runtimes, exported, exporter_digest
from exporter.measure.goals import reached
from exporter.measure.step import StepSetting, bench_step
from exporter.zoo import model_names


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the digits MLP has been exported for ONNX."""
    folder = tmp_path_factory.mktemp("bundles")
    exported(find_case("digits-mlp"), ("onnx",), folder, lambda _: None)
    return folder


@pytest.mark.parametrize("name", ["digits-mlp", "femnist-cnn", "resnet18", "shakespeare-rnn"])
def test_a_sized_model_gives_what_the_masked_one_gives(name: str) -> None:
    case = find_case(name, narrowed=True)
    model, batch = case.build(), case.batch()
    layout = derive(model, torch.from_numpy(case.batch().x)).layout
    pattern = Pattern.seeded(layout, 500, key=1)
    full = {t.name: model.state_dict()[t.name].numpy().copy() for t in layout.tensors}
    masked = {name: np.zeros_like(array) for name, array in full.items()}
    rows = Selection.of(pattern, "rows")
    rows.scatter(rows.gather(full), masked)

    ours = sized(model, Selection.of(pattern, "units").gather(full))(torch.from_numpy(batch.x))
    theirs = sized(model, masked)(torch.from_numpy(batch.x))

    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_eager_step_at_half_width_is_the_step_of_the_program(cache: Path) -> None:
    case = find_case("digits-mlp")
    bundle = exported(case, ("onnx",), cache, lambda _: None)
    pattern = Pattern.seeded(bundle.layout, 500, key=1)
    kept = Selection.of(pattern, "units").gather(bundle.weights())
    model = sized(case.build(), kept)

    eager_step(model, case.batch(), lr=0.1)()
    stepped = open_runtime("onnx", bundle).train_step(pattern, BATCH)(kept, case.batch(), lr=0.1)

    for tensor, ours in stepped.tensors.items():
        np.testing.assert_allclose(ours, model.get_parameter(tensor).detach().numpy(), rtol=1e-4, atol=1e-6)
        assert not np.array_equal(ours, kept[tensor])


@pytest.mark.matrix
def test_the_table_has_both_widths_of_torch_and_of_the_runtime(cache: Path) -> None:
    setting = StepSetting(("digits-mlp",), ("onnx",), threads=1, repeats=3, cache=cache)
    torch_row, onnx_row = bench_step(setting, lambda _: None).rows

    assert (torch_row["runtime"], onnx_row["runtime"]) == ("torch eager", "onnx")
    assert torch_row["full / eager"] == torch_row["half / eager's half"] == 1
    assert list(torch_row) == list(onnx_row)
    assert "full / eager ≤ 1: " in str(onnx_row["goals"])
    assert all(float(onnx_row[f"program, {width} (kB)"]) > 1 for width in ("full", "half"))
    assert all(
        float(row[f"memory, {width} (MB)"]) > 0.02 for row in (torch_row, onnx_row) for width in ("full", "half")
    )


def test_a_bundle_is_kept_until_the_exporter_changes(cache: Path) -> None:
    said: list[str] = []
    bundle = exported(find_case("digits-mlp"), ("onnx",), cache, said.append)
    assert not said
    assert bundle.root.parent == cache / exporter_digest() / "digits-mlp"


def test_an_unknown_runtime_is_refused_and_none_stands_for_all() -> None:
    with pytest.raises(RuntimeMissingError, match="'tflite' is unknown or not installed here"):
        chosen_runtimes(["onnx", "tflite"])
    assert chosen_runtimes(["onnx", "onnx"]) == ("onnx",)
    assert {"onnx", "torch_eager"} <= set(chosen_runtimes([]))


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model 'resnet19'"):
        bench_step(StepSetting(("resnet19",), ("onnx",), threads=1, repeats=1, cache=tmp_path), lambda _: None)


@pytest.mark.parametrize("name", case_names())
def test_every_model_has_a_batch_that_fits_it(name: str) -> None:
    case = find_case(name, narrowed=True)
    batch = case.batch()
    outputs = case.build()(torch.from_numpy(batch.x))

    further = (
        "ptb-lstm",
        "mnist-mlp-one-layer",
        "fashion-mnist-mlp-one-layer",
        "femnist-cnn-32-64",
        "cifarnet-16",
        "resnet18-16",
    )
    assert name in (*model_names(), *further)
    assert outputs.shape == (*batch.y.shape, case.model.classes)
    assert batch.y.max() < case.model.classes


def test_a_goal_is_reached_at_its_limit_and_not_above() -> None:
    at = {"full / eager": 1.0, "half / full": 0.51, "half / eager's half": 9.0}
    assert reached("mnist-mlp", "onnx", at) == "full / eager ≤ 1: yes; half / full ≤ 0.5: no"
    assert reached("cifarnet", "onnx", at) == ""


def test_alternatives_take_turns() -> None:
    order: list[str] = []
    times = turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=4)
    assert order[-8:] == ["a", "b"] * 4
    assert {name: len(taken) for name, taken in times.items()} == {"a": 4, "b": 4}
