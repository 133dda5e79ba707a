"""A round's sums on CUDA against those on the CPU: the same weights, to the last bit."""

from pathlib import Path

import pytest

from broker import model
from edge_fl.core.bundle import Bundle
from tests.device_sim.stacked_steps import RUNTIME, step_bundle, step_settings, trained

pytestmark = pytest.mark.gpu

RECIPES = {
    "fedavg": {"method": "fedavg"},
    "rows": {"method": "fedbiad", "parameters": {"tau": 1, "tau_in": "steps"}},
    "units": {"method": "feddrop"},
    "widths": {"method": "heterofl"},
    "sparse": {"method": "fedavg+topk"},
    "ternary": {"method": "fedavg+stc"},
    "exact": {"method": "fedavg", "exact_sums": True},
    "median": {"method": "fedavg", "robust": "median"},
}


def both(bundle: Bundle, root: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
    assert model.device_here() == "cuda"
    there = trained(bundle, root / "cuda", RUNTIME, rounds=2, **settings)
    monkeypatch.setattr(model, "device_here", lambda: "cpu")
    here = trained(bundle, root / "cpu", RUNTIME, rounds=2, **settings)
    assert all(there[name].tobytes() == here[name].tobytes() for name in here)


@pytest.mark.parametrize("kind", RECIPES)
def test_sums_are_those_of_the_cpu(
    torch_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    both(torch_bundle, tmp_path, monkeypatch, **RECIPES[kind])


def test_sums_of_products_are_close_to_those_of_the_cpu(
    adapter_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of matrices adds in an order of its own."""
    there = trained(adapter_bundle, tmp_path / "cuda", RUNTIME, rounds=2, method="flexlora")
    monkeypatch.setattr(model, "device_here", lambda: "cpu")
    here = trained(adapter_bundle, tmp_path / "cpu", RUNTIME, rounds=2, method="flexlora")
    assert max(abs(there[name] - here[name]).max() for name in here) < 1e-5


def test_statistics_of_every_width_are_those_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = step_settings("per-width-conv") | {"rounds": 2}
    bundle = step_bundle("per-width-conv", tmp_path / "bundle")
    there = trained(bundle, tmp_path / "cuda", RUNTIME, **settings)
    monkeypatch.setattr(model, "device_here", lambda: "cpu")
    here = trained(bundle, tmp_path / "cpu", RUNTIME, **settings)
    assert all(there[name].tobytes() == here[name].tobytes() for name in here)
