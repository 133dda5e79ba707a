"""A campaign: every target in a process of its own, and what came of it."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from fuzz.target import Target

__all__ = ["BUNDLE", "FOUND", "Outcome", "export_bundle", "run_campaign", "run_target"]

BUNDLE = "EDGE_FL_FUZZ_BUNDLE"
"""The environment variable that names the bundle which targets take apart."""
FOUND = Path(__file__).with_name("found")
"""A folder for each target, of cases that once found a fault; the tests try them again."""
_ROOT = Path(__file__).parents[1]
_RUNTIMES = ("onnx", "executorch", "executorch_training", "torch_eager")
_FINAL = re.compile(r"stat::(number_of_executed_units|peak_rss_mb):\s+(\d+)")
_LAST_LINES = 30


class Outcome(msgspec.Struct, frozen=True):
    """What came of one target: cases tried, seconds, the largest resident memory in MB, and the case that found a
    fault, with the end of what was said; empty where none did.
    """

    name: str
    cases: int
    seconds: float
    peak_mb: int
    finding: str = ""
    said: str = ""


def export_bundle(folder: Path) -> Path:
    """Export the digits network into ``folder``, for every runtime, unless it is there; raises CalledProcessError."""
    bundle = folder / "bundle"
    if not (bundle / "manifest.sha256").exists():
        runtimes = [word for name in _RUNTIMES for word in ("--runtime", name)]
        command = [sys.executable, "-m", "edge_fl", "export", "zoo:digits-mlp", *runtimes, "-o", str(bundle)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return bundle


def run_campaign(
    targets: Sequence[Target],
    *,
    share: float,
    jobs: int,
    folder: Path,
    tell: Callable[[Outcome], None],
) -> list[Outcome]:
    """Try ``share`` of the cases of all ``targets``, ``jobs`` at a time; ``tell`` hears of each as it ends.

    New cases of a fault are left in ``folder``.
    """
    bundle = export_bundle(folder)

    def one(target: Target) -> Outcome:
        outcome = run_target(target, cases=max(1, round(target.cases * share)), folder=folder, bundle=bundle)
        tell(outcome)
        return outcome

    longest_first = sorted(targets, key=lambda target: -target.cases)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, longest_first))


def run_target(target: Target, *, cases: int, folder: Path, bundle: Path | None = None) -> Outcome:
    """Try so many ``cases`` of one target in a process of its own, which a fault may end."""
    prefix = folder / f"{target.name}-"
    before = set(folder.glob(f"{prefix.name}*"))
    settings = msgspec.json.encode({"target": target, "cases": cases, "prefix": str(prefix)}).decode()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({BUNDLE: str(bundle)} if bundle else {})}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "fuzz.worker", settings]
        code = subprocess.run(
            command, stdout=said, stderr=said, env=environment, cwd=_ROOT, check=False
        ).returncode
        said.seek(0)
        text = said.read()
    figures = {name: int(number) for name, number in _FINAL.findall(text)}
    new = sorted(set(folder.glob(f"{prefix.name}*")) - before)
    finding = str(new[0]) if new else f"exit code {code}" if code else ""
    return Outcome(
        target.name,
        figures.get("number_of_executed_units", 0),
        round(time.monotonic() - began, 1),
        figures.get("peak_rss_mb", 0),
        finding,
        "\n".join(text.splitlines()[-_LAST_LINES:]) if finding else "",
    )
