"""``python -m fuzz``: try everything that takes bytes from outside."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fuzz.campaign import Outcome, run_campaign
from fuzz.targets import TARGETS

__all__: list[str] = []


def fuzz(
    names: Annotated[list[str] | None, typer.Argument(help="Targets; all by default.")] = None,
    *,
    share: Annotated[float, typer.Option(help="Of a full campaign's cases.", min=0.0)] = 1.0,
    jobs: Annotated[int, typer.Option(help="Processes at a time.", min=1)] = 2,
    out: Annotated[Path, typer.Option(help="Where cases that find a fault are left.")] = Path(".fuzz"),
    json: Annotated[bool, typer.Option("--json", help="Print the outcomes as JSON.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print the targets, and end.")] = False,
) -> None:
    """Fuzz decoders, messages, state machines, files and program loaders, guided by coverage.

    Example: python -m fuzz frame gateway --share 0.1
    """
    known = {target.name: target for target in TARGETS}
    if unknown := sorted(set(names or ()) - set(known)):
        raise typer.BadParameter(f"there is no target '{unknown[0]}': see --list")
    chosen = [known[name] for name in names] if names else list(TARGETS)
    if listed:
        for target in chosen:
            print(f"{target.name:32}{target.cases:>10,} cases  {target.megabytes:>5} MB")
        return
    out.mkdir(parents=True, exist_ok=True)
    outcomes = run_campaign(chosen, share=share, jobs=jobs, folder=out.resolve(), tell=_tell)
    found = [outcome for outcome in outcomes if outcome.finding]
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(outcomes) + b"\n")
    else:
        total = sum(outcome.cases for outcome in outcomes)
        print(f"{total:,} cases of {len(outcomes)} targets; {len(found)} found a fault.")
    raise typer.Exit(1 if found else 0)


def _tell(outcome: Outcome) -> None:
    rate = outcome.cases / outcome.seconds if outcome.seconds else 0.0
    end = f"FAULT, see {outcome.finding}" if outcome.finding else "no fault"
    line = f"{outcome.name:32}{outcome.cases:>10,} cases {rate:>8,.0f}/s {outcome.peak_mb:>6} MB  {end}"
    print(line, file=sys.stderr, flush=True)
    if outcome.said:
        print(outcome.said, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(fuzz)
