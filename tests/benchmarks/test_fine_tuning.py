"""What fine-tuning costs: a small transformer's step, and a small fleet with frozen weights."""

import numpy as np
import pytest

from benchmarks.fine_tuning_step import FineTuningSetting, bench_fine_tuning_step
from benchmarks.frozen import FrozenSetting, bench_frozen
from benchmarks.products import ALONE, products


@pytest.mark.matrix
def test_a_step_of_all_of_half_of_adapters_and_of_the_head() -> None:
    setting = FineTuningSetting(("onnx",), width=16, heads=2, depth=1, threads=1, repeats=2)
    result = bench_fine_tuning_step(setting, lambda _: None)
    ours = {row["trained"]: row for row in result.rows if row["runtime"] == "onnx"}

    uploads = [row["upload, units / all"] for row in ours.values()]
    assert len(ours) == 5
    assert uploads == sorted(
        uploads, reverse=True
    )  # all, half of it, adapters, the head, the head of kept features
    assert "edge-fl bench fine-tuning-step --runtime onnx --width 16" in result.command
    floors = [row["runtime"] for row in result.rows if str(row["runtime"]).startswith("products")]
    assert floors == ["products alone, torch", "products alone, onnx"]


@pytest.mark.parametrize("runtime", [None, *ALONE])
def test_products_alone_are_a_forward_and_both_backward_products(runtime: str | None) -> None:
    found = products([(1, 4, 3, 5), (2, 3, 4, 2)], runtime, threads=1)()
    assert isinstance(found, list)
    assert len(found) == (6 if runtime is None else 1)
    if runtime is None:
        assert [tuple(product.shape) for product in found[:3]] == [(1, 4, 5), (1, 4, 3), (1, 3, 5)]
    else:
        expected = [product[0, 0, 0] * 2 for product in products([(1, 4, 3, 5), (2, 3, 4, 2)], None, threads=1)()]  # type: ignore[attr-defined]
        np.testing.assert_allclose(np.ravel(found[0]), expected, rtol=1e-5)


@pytest.mark.matrix
def test_a_frozen_model_is_fetched_once_and_in_int8_as_a_quarter() -> None:
    setting = FrozenSetting(width=128, depth=1, vocabulary=100, agents=2, rounds=3, dtypes=("float32", "int8"))
    _, wide, narrow = bench_frozen(setting, lambda _: None).rows

    for row in (wide, narrow):
        assert row["fetched in round 1 (MB)"] > row["frozen file (MB)"] > 0.2  # type: ignore[operator]
        assert row["fetched a round later (MB)"] < 0.1  # type: ignore[operator]
        assert row["memory of an agent (MB)"] > 20  # type: ignore[operator]
    assert wide["frozen numbers (M)"] == narrow["frozen numbers (M)"]
    assert 0.25 < narrow["frozen file (MB)"] / wide["frozen file (MB)"] < 0.28  # type: ignore[operator]
