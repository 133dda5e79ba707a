"""The campaign finds what is planted; every target takes its own seeds, and each case that once found a fault."""

import subprocess
import sys
from pathlib import Path

import pytest

import broker.gateway
from edge_fl.agent import conversation
from edge_fl.core.bundle import Bundle
from fuzz.campaign import BUNDLE, FOUND, run_target
from fuzz.target import Draws, Exhausted, Target
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
# The shared bundle has no programs for it; the zoo's conformance tests load its programs.
REPLAYED = [target for target in TARGETS if target.name != "load-executorch_training"]


@pytest.mark.parametrize("target", REPLAYED, ids=lambda target: target.name)
def test_seeds_and_what_was_found_are_taken(
    target: Target, digits_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BUNDLE, str(digits_bundle.root))
    # Two targets replace these for a process of their own.
    monkeypatch.setattr(broker.gateway, "_NEWCOMER_SECONDS", broker.gateway._NEWCOMER_SECONDS)
    monkeypatch.setattr(conversation, "Connection", conversation.Connection)
    prepared = target.prepare()
    assert prepared.seeds
    found = [file.read_bytes() for file in sorted((FOUND / target.name).glob("*"))]
    for case in [*prepared.seeds, *found, b""]:
        prepared.run(bytes(case))


def test_what_was_found_belongs_to_a_target() -> None:
    assert {folder.name for folder in FOUND.iterdir()} <= {target.name for target in TARGETS}


def test_a_campaign_is_ten_million_cases_and_each_target_has_its_share() -> None:
    assert sum(target.cases for target in TARGETS) >= 10_000_000
    for target in TARGETS:
        assert target.cases >= (10_000 if target.name.startswith("load-") else 100_000)
    assert len({target.name for target in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize("kind", ["raises", "allocates", pytest.param("hangs", marks=pytest.mark.matrix)])
def test_a_planted_fault_is_found(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    target = Target("planted", f"tests.fuzz.planted:fault:{kind}", 1000, megabytes=64)
    outcome = run_target(target, cases=50_000, folder=tmp_path)
    found = Path(outcome.finding).read_bytes()
    assert found[0] > found[1]
    assert outcome.said


def test_no_fault_is_no_finding(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    outcome = run_target(Target("none", "tests.fuzz.planted:none", 1000), cases=300, folder=tmp_path)
    assert (outcome.finding, outcome.cases) == ("", 300), outcome.said


def test_a_case_decides_until_it_is_used_up() -> None:
    draws = Draws(bytes([4, 2, 1, 2, 7]))
    assert draws.pick("abc") == "b"
    assert draws.bytes() == bytes([1, 2])
    assert draws.byte() == 7
    with pytest.raises(Exhausted):
        draws.byte()


def test_an_unknown_target_is_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "nothing"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 2
    assert "no target 'nothing'" in done.stderr
