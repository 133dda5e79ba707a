"""Methods that round a width in two ways, on a runtime that needs a program for each."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.numpy import load_file

from broker.observer import Observer
from broker.summary import RunSummary
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.inputs import Input
from exporter.export import Target, export_bundle
from exporter.zoo import mlp


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two layers of 7 units: of 0.2 and of 0.5, FjORD keeps one more than dropout leaves, or as many."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = Target(
        name="odd",
        dataset="digits",
        input=Input((1, 8, 8), "float32"),
        classes=10,
        runtimes=("executorch", "onnx"),
        widths=(1000, 500, 200),
        variants=("plain", "distil"),
    )
    return export_bundle(mlp.mlp(inputs=64, hidden=7, classes=10), target, tmp_path_factory.mktemp("odd"))


def run(system, bundle: Bundle, method: str, runtime: str, root: Path, **parameters: object) -> RunSummary:
    config = system.config(method, rounds=2, clients=3, parameters=parameters)
    return Simulation(
        bundle=bundle,
        config=config,
        population=Population(3, tiers=3),
        trainer=TrainerSettings("runtime", runtime),
        root=root / runtime,
        observer=Observer(),
    ).run()


@pytest.mark.matrix
def test_counts_that_agree_share_a_program(odd: Bundle) -> None:
    steps = [program for program in odd.manifest.programs["executorch"] if program.kind == "step"]

    assert [program.kept for program in steps if program.variant == "plain"] == [
        {"1": n, "3": n} for n in (7, 4, 2, 1)
    ]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("fjord", {"widths": [1000, 500, 200]}),
        pytest.param("fjord+kd", {"widths": [1000, 500, 200]}, marks=pytest.mark.matrix),
        ("efd", {"width": 500, "widths": [1000, 500, 200]}),
        ("feddrop", {"dropout": [0, 500, 800]}),
    ],
)
def test_ordered_and_random_dropout_train_on_static_programs_as_on_any(
    method: str, parameters: dict[str, object], system, odd: Bundle, tmp_path: Path
) -> None:
    summaries = [run(system, odd, method, name, tmp_path, **parameters) for name in ("executorch", "onnx")]
    static, free = (load_file(summary.weights) for summary in summaries)

    assert [m.uplink for m in summaries[0].rounds] == [m.uplink for m in summaries[1].rounds]
    for name, start in odd.weights().items():
        assert abs(static[name] - free[name]).max() < 1e-5
        assert abs(static[name] - start).max() > 1e-4


def test_a_width_without_a_program_is_named_by_what_to_export(system, odd: Bundle, tmp_path: Path) -> None:
    alone = {"executorch": odd.manifest.programs["executorch"]}
    # 6 of 7 units are what 0.8 and 0.9 keep, rounded either way.
    static = Bundle(odd.root, msgspec.structs.replace(odd.manifest, programs=alone))
    with pytest.raises(ConfigError, match=r"and 0\.9 among its --widths"):
        run(system, static, "fjord", "executorch", tmp_path, widths=[1000, 800])
