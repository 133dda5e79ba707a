"""What no device could do is refused before one is asked, whatever its tier."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from broker.recipe_checks import check_recipe
from edge_fl.core.bundle import SCHEMA, Bundle, Manifest, Optimizer, Program
from edge_fl.core.errors import ConfigError
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout, Segment, Tensor
from edge_fl.core.pattern import prefix_counts
from edge_fl.core.width_statistics import with_rows
from edge_fl.measure.models import mlp_layout
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig

DENSE = mlp_layout(6, 8, 3)
PARTS = {"name": "b", "dataset": "digits", "classes": 3, "loss": "cross_entropy", "parity": {}, "tools": {}}
SHAPES = {"input": Input((6,), "float32"), "target": Input((), "int64")}


def bundle(*kept: Mapping[str, int] | None, variants: tuple[str, ...] = ("plain",)) -> Bundle:
    """One of programs for so many units; None stands for any."""
    programs = tuple(
        Program("p", "step", (), (), variant, None if counts is None else dict(counts), None)
        for counts in kept
        for variant in variants
    )
    return Bundle(Path(), Manifest(SCHEMA, layout=DENSE, programs={"onnx": programs}, **PARTS, **SHAPES))


def check(
    bundle: Bundle, recipe: str, tiers: int | None = None, runtime: str | None = None, **parameters: object
) -> None:
    sizes = {"rounds": 1, "clients_per_round": 1, "local_steps": 1, "batch": 20}
    config = RunConfig(run="run", method=recipe, parameters=parameters, lr=0.1, seed=0, **sizes)
    check_recipe(bundle, open_recipe(recipe, parameters), config, tiers=tiers, runtime=runtime)


def at(*widths: int) -> list[dict[str, int]]:
    return [prefix_counts(DENSE, width) for width in widths]


def test_a_runtime_that_lacks_a_width_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Its devices would be turned away one by one."""
    held = bundle(*at(1000))
    both = {"onnx": bundle(None).manifest.programs["onnx"], "executorch": held.manifest.programs["onnx"]}
    whole = Bundle(Path(), msgspec.structs.replace(held.manifest, programs=both))
    check(whole, "feddrop", tiers=2, dropout=[0, 500])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith(
        "devices of tier 1 with executorch cannot take part: The bundle has no 'plain' program"
    )
    check(whole, "feddrop", tiers=2, runtime="onnx", dropout=[0, 500])
    assert len(caplog.records) == 1
    with pytest.raises(ConfigError, match=r"for runtime 'executorch', .*: export it"):
        check(whole, "feddrop", tiers=2, runtime="executorch", dropout=[0, 500])


@pytest.mark.parametrize(
    ("recipe", "parameters", "missing"),
    [
        ("heterofl", {"levels": ["a", "b", "c"]}, 2),
        ("feddrop", {"dropout": [0, 500, 750]}, 2),
        ("efd", {"widths": [1000, 500, 250]}, 2),
        ("fjord", {"widths": [500, 1000]}, 8),
        ("fjord+efd", {"widths": [1000, 500], "cap": 250}, 6),
    ],
)
def test_every_tier_must_find_its_programs(recipe: str, parameters: dict[str, object], missing: int) -> None:
    held = bundle(*(at(500) if recipe == "fjord" else at(1000, 500)))
    with pytest.raises(ConfigError, match=f"kept units layer0 {missing} and .*: export it"):
        check(held, recipe, **parameters)
    check(bundle(None), recipe, **parameters)


def test_a_loss_that_cannot_mask_labels_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    check(bundle(None), "heterofl")
    assert "export with --loss masked_cross_entropy" in caplog.text
    caplog.clear()
    check(bundle(None), "heterofl", mask=False)
    check(bundle(None), "fedavg")
    assert not caplog.text


@pytest.mark.parametrize(
    ("optimizer", "lr", "told"), [("adam", 0.1, True), ("adam", 0.01, False), ("sgd", 0.1, False)]
)
def test_steps_that_are_long_for_adam_are_told_of(
    optimizer: Literal["sgd", "adam"], lr: float, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = msgspec.structs.replace(bundle(None).manifest, optimizer=Optimizer(optimizer))
    sizes = {"rounds": 1, "clients_per_round": 1, "local_steps": 1, "batch": 20}
    config = RunConfig(run="run", method="fedavg", parameters={}, lr=lr, seed=0, **sizes)
    check_recipe(Bundle(Path(), manifest), open_recipe("fedavg", {}), config)
    assert ("Adam, for which a step size of 0.1 is long" in caplog.text) == told


def test_tiers_that_a_run_has_not_need_none() -> None:
    held, parameters = bundle(*at(1000, 500)), {"levels": ["a", "b", "c"]}
    check(held, "heterofl", tiers=2, **parameters)
    with pytest.raises(ConfigError, match="kept units layer0 2 and"):
        check(held, "heterofl", tiers=7, **parameters)


def test_the_least_tier_must_keep_a_unit() -> None:
    with pytest.raises(ConfigError, match="'feddrop' would keep no unit of block 'layer0' in tier 1; drop less"):
        check(bundle(None), "feddrop", dropout=[0, 950])


def test_a_bundle_without_the_step_that_distils_is_refused_with_what_to_export() -> None:
    with pytest.raises(ConfigError, match=r"no 'distil' program .*: export it with --variant distil"):
        check(bundle(None), "fjord+kd")
    with pytest.raises(ConfigError, match=r"no 'plain' program .*: export it with --variant plain"):
        check(bundle(None, variants=("distil",)), "fjord+kd")
    check(bundle(None, variants=("plain", "distil")), "fjord+kd")
    check(bundle(None), "fjord+kd", widths=[500])


def normalised(*widths: int) -> Bundle:
    """One whose BatchNorm has statistics for each of ``widths``."""
    axis = ((Segment("layer0"),),)
    mean = Tensor("norm.mean", (8,), rows=axis, units=axis, role="statistic")
    layout = with_rows(Layout(DENSE.blocks, (*DENSE.tensors, mean)), len(widths))
    held = bundle(None, variants=("plain", "distil"))
    more = {"layout": layout, "batch_norm": "per-width", "statistic_widths": widths}
    return Bundle(held.root, msgspec.structs.replace(held.manifest, **more))


@pytest.mark.parametrize("recipe", ["fjord", "fjord+kd", "fjord+efd"])
def test_every_width_that_is_drawn_must_have_statistics_of_its_own(recipe: str) -> None:
    check(normalised(1000, 500, 250), recipe, widths=[500, 1000])
    with pytest.raises(
        ConfigError, match=r"statistics of the widths 0\.8, 0\.2 in tier 0.* has those of 1, 0\.5: exp"
    ):
        check(normalised(1000, 500), recipe, widths=[1000, 800, 500, 200])
    check(bundle(None, variants=("plain", "distil")), recipe, widths=[1000, 800, 500, 200])


def test_so_must_the_model_that_efd_trains() -> None:
    check(normalised(1000, 500), "efd", width=500, widths=[1000, 200])
    with pytest.raises(ConfigError, match=r"of the widths 0\.4 in tier 0"):
        check(normalised(1000, 500), "efd", width=400)


def test_a_method_that_drops_nothing_of_a_recurrent_model_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    held = bundle(None)
    blocks = tuple(msgspec.structs.replace(block, recurrent=True) for block in DENSE.blocks)
    recurrent = msgspec.structs.replace(held.manifest, layout=msgspec.structs.replace(DENSE, blocks=blocks))
    check(held, "feddrop", dropout=[500])
    assert not caplog.text
    check(Bundle(Path(), recurrent), "feddrop", dropout=[500])
    assert "'feddrop' drops no unit of this model" in caplog.text
    caplog.clear()
    check(Bundle(Path(), recurrent), "feddrop", dropout=[0])
    assert not caplog.text
