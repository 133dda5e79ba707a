"""Rounds whose updates stay with the workers that trained them: the bits of one process, and no lie goes in."""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.numpy import load_file

from broker.acceptance import Expected, check_held
from broker.held_update import HeldUpdate
from broker.observer import Observer
from device_sim.simulation.processes import ProcessEngine
from device_sim.simulation.settings import Population, TrainerSettings
from device_sim.simulation.simulate import Simulation
from device_sim.simulation.worker import Job
from edge_fl.aggregation.bounds import Size
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import FrameError, RunError
from edge_fl.core.inputs import Input
from edge_fl.core.pattern import Pattern
from edge_fl.recipes.recipe import open_recipe
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.sum_frame import decode_sum, encode_sum
from edge_fl.wire.values import WITHHELD
from exporter.export import Target, export_bundle
from tests.device_sim.test_processes import CONFIG, simulation
from tests.once import exported_once

RECIPES: dict[str, dict[str, Any]] = {
    "rows": {"method": "fedbiad"},
    "units": {"method": "fjord"},
    "sparse": {"method": "vardrop"},
    "compressor": {"method": "fedavg+dgc"},
    "signs": {"method": "fedavg+signsgd"},
    "limits": {"method": "fedbiad+stc", "samples_bound": 1.1, "norm_bound": 1.0},
}


@pytest.fixture(scope="module")
def statistics_bundle(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Bundle:
    """A CNN whose BatchNorm has statistics for each of two widths."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 10),
    )
    target = Target("bn", "digits", Input((1, 8, 8), "float32"), 10, ("onnx",), widths=(1000, 500))
    return exported_once(
        tmp_path_factory, "bn", lambda root: export_bundle(net, target, root), workers=worker_id != "master"
    )


def trained(bundle: Bundle, root: Path, processes: int, **changes: Any) -> tuple[dict[str, bytes], list[Any]]:
    """The weights of three rounds, and what the record says of each but times."""
    run = Simulation(
        bundle=bundle,
        config=msgspec.structs.replace(CONFIG, **{"rounds": 3, "exact_sums": True, **changes}),
        population=Population(9, tiers=2),
        trainer=TrainerSettings("runtime", processes=processes),
        root=root,
        observer=Observer(),
    ).run()
    weights = {name: array.tobytes() for name, array in load_file(run.weights).items()}
    return weights, [(m.uplink, m.downlink, m.clipped, m.loss, m.scores) for m in run.rounds]


@pytest.mark.parametrize(
    ("recipe", "processes"),
    [
        ("rows", 2),
        ("limits", 2),
        *(
            pytest.param(recipe, processes, marks=pytest.mark.matrix)
            for recipe in RECIPES
            for processes in (2, 7)
            if processes == 7 or recipe not in ("rows", "limits")
        ),
    ],
)
def test_any_number_of_workers_comes_to_the_same_bits(
    torch_bundle: Bundle, tmp_path: Path, recipe: str, processes: int
) -> None:
    found = [trained(torch_bundle, tmp_path / str(n), n, **RECIPES[recipe]) for n in (1, processes)]
    assert found[0] == found[1]
    clipped = [each for _, _, each, _, _ in found[0][1]]
    assert any(clipped) == (recipe == "limits")


def test_statistics_of_widths_come_to_the_same_bits(statistics_bundle: Bundle, tmp_path: Path) -> None:
    changes = {"method": "heterofl", "parameters": {"levels": ["a", "b"]}}
    found = [trained(statistics_bundle, tmp_path / str(n), n, **changes) for n in (1, 2)]
    assert found[0] == found[1]


class Lossy(ProcessEngine):
    """Loses parts before they are added up, drawn anew, for good or so often."""

    rng = random.Random(0)
    times = 1

    def do_where_held(
        self, jobs: Callable[[Sequence[int]], Job], parts: Sequence[int]
    ) -> tuple[list[tuple[list[int], Any]], list[int]]:
        lost = [part for part in parts if type(self).times > 0 and self.rng.random() < 0.5]
        type(self).times -= bool(lost)
        answers, more = super().do_where_held(jobs, [part for part in parts if part not in lost])
        return answers, [*more, *lost]


@pytest.mark.parametrize(
    "recipe",
    [
        "limits",
        "compressor",
        *(
            pytest.param(name, marks=pytest.mark.matrix)
            for name in RECIPES
            if name not in ("limits", "compressor")
        ),
    ],
)
def test_lost_parts_are_trained_again_to_the_same_bits(
    torch_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    expected = trained(torch_bundle, tmp_path / "one", 1, **RECIPES[recipe])
    monkeypatch.setattr("device_sim.simulation.settings.ProcessEngine", Lossy)
    monkeypatch.setattr(Lossy, "times", 2)
    assert trained(torch_bundle, tmp_path / "two", 2, **RECIPES[recipe]) == expected
    assert Lossy.times == 0


def test_who_is_always_lost_ends_the_round(
    torch_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_sim.simulation.settings.ProcessEngine", Lossy)
    monkeypatch.setattr(Lossy, "times", 1000)
    with pytest.raises(RunError, match=r"Workers were lost 3 times before round . was added up: see that"):
        trained(torch_bundle, tmp_path / "run", 2)


class Liar(ProcessEngine):
    """Gives other sums on than workers made."""

    lie: Callable[[list[bytes], Bundle], list[bytes]]

    def __init__(self, bundle: Bundle, *arguments: Any) -> None:
        super().__init__(bundle, *arguments)
        self._bundle = bundle

    def do_where_held(
        self, jobs: Callable[[Sequence[int]], Job], parts: Sequence[int]
    ) -> tuple[list[tuple[list[int], Any]], list[int]]:
        answers, lost = super().do_where_held(jobs, parts)
        told = type(self).lie([answer for _, answer in answers], self._bundle)
        places = [some for some, _ in answers]
        return list(zip([*places, places[0]], told, strict=False)), lost


def other_round(sums: list[bytes], bundle: Bundle) -> list[bytes]:
    found = decode_sum(sums[0], bundle.layout)
    header = msgspec.structs.replace(found.header, round=found.header.round + 1)
    return [encode_sum(header, bundle.layout, found.tensors), *sums[1:]]


def weighty(frame: bytes, bundle: Bundle) -> bytes:
    found = decode_sum(frame, bundle.layout)
    return encode_sum(
        msgspec.structs.replace(found.header, weight=found.header.weight + 1), bundle.layout, found.tensors
    )


def too_much(sums: list[bytes], bundle: Bundle) -> list[bytes]:
    found = decode_sum(sums[0], bundle.layout)
    name = bundle.layout.tensors[0].name
    held = found.tensors[name]
    large = held.total + (1 << 61) * (held.holders > 0)
    return [encode_sum(found.header, bundle.layout, {**found.tensors, name: replace(held, total=large)})]


LIES: dict[str, tuple[Callable[[list[bytes], Bundle], list[bytes]], str]] = {
    "twice": (lambda sums, _: [*sums, sums[0]], "in place of 9"),
    "missing": (lambda sums, _: [], "added up 0 updates in place of 9"),
    "another's": (lambda sums, bundle: [weighty(sums[0], bundle), *sums[1:]], "added up . updates in place of"),
    "another round": (other_round, "of another round"),
    "too much": (too_much, "more than its updates can come to"),
    "cut": (lambda sums, _: [sums[0][:-8], *sums[1:]], "announces"),
    "no bytes": (lambda sums, _: [b"", *sums[1:]], "fewer than its own prelude"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_worker_that_lies_is_found_out(
    torch_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    make, says = LIES[lie]
    monkeypatch.setattr(Liar, "lie", staticmethod(make), raising=False)
    monkeypatch.setattr("device_sim.simulation.settings.ProcessEngine", Liar)
    with pytest.raises(FrameError, match=says):
        simulation(torch_bundle, tmp_path / "run", TrainerSettings("runtime", processes=2), exact_sums=True).run()


def told(bundle: Bundle) -> tuple[HeldUpdate, Expected]:
    """What a worker tells of an update of TCS's kind, and what was asked."""
    recipe = open_recipe("vardrop", {})
    frame = encode_frame(
        Header(
            "update", "r", 2, 1, "", "vardrop", mode=recipe.method.mode, client="a", samples=5, values=WITHHELD
        ),
        Pattern.full(bundle.layout),
        {},
    )
    names = [tensor.name for tensor in bundle.layout.tensors]
    entries = sum(tensor.size for tensor in bundle.layout.parameters)
    update = HeldUpdate(
        frame=frame,
        length=1000,
        sent=bytes(-(-entries // 8)),
        farthest=(names[0], 0.5),
        size=Size(5.0, 0.1, 0.0),
        reach=dict.fromkeys(names, 0.5),
    )
    asked = Expected(
        layout=bundle.layout,
        recipe=recipe,
        run="r",
        round=2,
        version=1,
        client="a",
        tier=0,
        samples=10,
        max_change=1.0,
    )
    return update, asked


UPDATES: dict[str, tuple[Callable[[HeldUpdate], HeldUpdate], str]] = {
    "too long": (lambda u: replace(u, length=1 << 40), "has 1099511627776 bytes"),
    "of no length": (lambda u: replace(u, length=-5), "has -5 bytes"),
    "too far": (lambda u: replace(u, farthest=(u.farthest[0], 1.5)), "by 1.5e+00"),
    "nowhere": (lambda u: replace(u, farthest=(u.farthest[0], math.nan)), "by nan"),
    "without end": (lambda u: replace(u, reach={**u.reach, u.farthest[0]: math.inf}), "not finite"),
    "no reach": (lambda u: replace(u, reach={}), "reach of other tensors"),
    "farther than its change": (lambda u: replace(u, reach={**u.reach, u.farthest[0]: 0.6}), "reaches farther"),
    "of no size": (lambda u: replace(u, size=Size(5.0, math.nan, 0.0)), "not finite"),
    "other entries": (lambda u: replace(u, sent=b"1"), "other entries that were sent"),
}


@pytest.mark.parametrize("lie", UPDATES)
def test_what_no_update_is_like_is_refused(torch_bundle: Bundle, lie: str) -> None:
    update, asked = told(torch_bundle)
    assert check_held(update, asked).sent is not None
    change, says = UPDATES[lie]
    with pytest.raises(FrameError, match=re.escape(says)):
        check_held(change(update), asked)
