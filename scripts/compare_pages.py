"""Run the performance pages of two checkouts in turns on this machine, and compare their figures row by row.

Usage: python scripts/compare_pages.py OLD NEW [--page NAME] [--turns N] [--json]

OLD and NEW are folders. A page's figure is the median of N turns, in which either checkout goes first as often. The
exit status is 1 when a page's figures are above 1.03 of OLD's in their geometric mean, or one above 1.10.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median

MEAN, ROW = 1.03, 1.10
PAGES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "codec": ((), ("encode / copy", "decode / copy")),
    "aggregate": (("--repeats=8",), ("aggregate / copy", "decode / copy")),
    "step": (
        ("--model=digits-mlp", "--model=fashion-mnist-mlp", "--model=femnist-cnn", "--runtime=onnx"),
        ("full / eager", "half / full"),
    ),
    "simulator": (("--rounds=5",), ("/ loop",)),
    "load": (("--agents=1000", "--rounds=3"), ("edge-fl / bare", "CPU of coordinator")),
}
"""By page, its options, and the columns that are compared: a smaller figure is the better."""

_NO_NAMES = ("goals", "TLS")
"""Columns whose words name no row: verdicts, and a column that older commits lack."""


def figures(root: Path, page: str, python: str) -> dict[str, float]:
    """Run a page in a checkout; its figures by row and column."""
    options, columns = PAGES[page]
    done = subprocess.run(
        [python, "-m", "edge_fl", "bench", page, "--json", *options],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"`edge-fl bench {page}` fails in {root}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = {}
    for number, row in enumerate(json.loads(done.stdout)["rows"]):
        words = [value for column, value in row.items() if isinstance(value, str) and column not in _NO_NAMES]
        name = ", ".join([str(number), *words])
        found |= {f"{name}: {c}": row[c] for c in columns if isinstance(row.get(c), int | float)}
    if not found:
        raise SystemExit(f"`edge-fl bench {page}` has none of the columns {', '.join(columns)}.")
    return found


def compared(page: str, old: Path, new: Path, *, turns: int, python: str) -> dict[str, float]:
    """The median of NEW's figures over that of OLD's, by row and column."""
    sides: dict[Path, list[dict[str, float]]] = {old: [], new: []}
    for turn in range(turns):
        for root in (old, new) if turn % 2 == 0 else (new, old):
            print(f"{page}: turn {turn + 1} of {turns}, {root}", file=sys.stderr, flush=True)
            sides[root].append(figures(root, page, python))
    middles = [{name: median(one[name] for one in sides[root]) for name in sides[root][0]} for root in sides]
    if middles[0].keys() != middles[1].keys():
        raise SystemExit(f"`edge-fl bench {page}` has other rows in {new} than in {old}.")
    return {name: middles[1][name] / value for name, value in middles[0].items() if not math.isclose(value, 0)}


def main() -> int:
    """Compare as the command line says."""
    parser = argparse.ArgumentParser(description="Compare the performance pages of two checkouts.")
    parser.add_argument("old", type=Path, help="the folder of the checkout to compare with")
    parser.add_argument("new", type=Path, help="the folder of the other")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs both")
    parser.add_argument("--page", action="append", choices=PAGES, help="a page; repeat for several [default: all]")
    parser.add_argument("--turns", type=int, default=4, help="how often each checkout runs a page")
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON")
    options = parser.parse_args()
    old, new, ratios = options.old.resolve(), options.new.resolve(), {}
    for page in options.page or PAGES:
        rows = ratios[page] = compared(page, old, new, turns=options.turns, python=options.python)
        if not options.json:
            worst = max(rows.values())
            print(f"{page}: geometric mean {geometric_mean(rows.values()):.3f}, worst {worst:.3f}", flush=True)
            for name, ratio in rows.items():
                print(f"    {ratio:.3f}  {name}", flush=True)
    if options.json:
        print(json.dumps(ratios, indent=1))
    return int(any(geometric_mean(r.values()) > MEAN or max(r.values()) > ROW for r in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
