"""`edge-fl status`: how a run stands, of a fleet or simulated, while it goes on or after."""

import json as json_module
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_fl.commands.options import Database
from edge_fl.commands.tables import show_table
from edge_fl.core.errors import EdgeFLError

if TYPE_CHECKING:
    from broker.status import DeviceStatus, RunStatus
    from edge_fl.runs.metrics import RoundMetrics

__all__ = ["status"]


def status(
    *,
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    database: Database = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show a run's rounds, its devices, and why messages and updates were turned away.

    Example: edge-fl status runs/20260101-120000-abcd
    """
    from broker.status import status_of

    found = status_of(run, database)
    if json:
        typer.echo(json_module.dumps(found.figures()))
    else:
        _show(found, run, database)


def _of_round(run: Path) -> str:
    """Which round the weights are of, where that is not the last, and its scores."""
    from edge_fl.metrics.text import scores_text
    from edge_fl.runs.run import Run

    try:
        best = Run.open(run).best
    except EdgeFLError:  # a damaged record, or none on this machine
        return ""
    return "" if best is None else f", of round {best.round} ({scores_text(best.scores)})"


def _show(found: "RunStatus", run: Path, database: str | None) -> None:
    from edge_fl.metrics.text import loss_text, scores_text

    last = found.last
    scores = ""
    if last is not None:
        spent = "" if last.privacy is None else last.privacy.text
        parts = [scores_text(last.scores), loss_text(last.loss, last.train_loss), spent]
        scores = "".join(f", {part}" for part in parts if part)
    print(f"run {found.run}: {found.method}, {found.finished} of {found.rounds} rounds{scores}\n")
    if found.state == "stopped":
        where = ", with the options of the connection that it had" if found.command == "serve" else ""
        record = "" if database is None else " --database URL"  # which may hold a password
        words = f"edge-fl {found.command} --resume {shlex.quote(str(run))}{record}"
        print(f"No process is at work on this run. Go on: {words}{where}\n")
    if found.state == "ended":
        command = f"edge-fl extract {shlex.quote(str(run))} --runtime onnx -o model.onnx"
        print(f"The run has ended. Its model{_of_round(run)}: {command}\n")
    show_table(
        f"On devices after round {found.finished}",
        ("tier", "width", "devices", "samples", "scores", "loss"),
        [
            (
                tier,
                f"{score.width / 1000:g}",
                score.clients,
                score.samples,
                scores_text(score.scores),
                f"{score.loss:.4f}",
            )
            for tier, score in ({} if last is None else last.on_devices).items()
        ],
    )
    show_table(
        "Latest rounds",
        ("round", "updates", "excused", "training loss", "loss", "scores", "epsilon", "uplink (kB)", "seconds"),
        [
            (
                one.round,
                len(one.uplink),
                len(one.excused),
                "" if one.train_loss is None else f"{one.train_loss:.4f}",
                "" if one.loss is None else f"{one.loss:.4f}",
                scores_text(one.scores),
                _epsilon(one),
                f"{sum(one.uplink.values()) / 1000:,.1f}",
                f"{one.seconds:.1f}" if one.seconds >= 10 else f"{one.seconds:.2g}",
            )
            for one in found.latest
        ],
    )
    show_table(
        "Devices",
        (
            "device",
            "tier",
            "runtime",
            "platform",
            "samples",
            "last accepted round",
            "this round",
            "clipped rounds",
            "rests until",
            "connection",
            "last seen",
        ),
        [
            (
                d.client,
                d.tier,
                d.runtime,
                d.platform,
                d.samples,
                d.accepted,
                d.now,
                d.clipped or "",
                f"round {d.rests}" if d.rests else "",
                _connection(d),
                _ago(d.heard),
            )
            for d in found.devices
        ],
    )
    show_table(
        "Turned away",
        ("round", "device", "code", "how often", "last reason"),
        [(r.round, r.client, r.code, r.count, r.reason) for r in found.rejected],
    )


def _epsilon(metrics: "RoundMetrics") -> str:
    """What all rounds so far cost in privacy, if it is counted."""
    spent = metrics.privacy
    return "" if spent is None or spent.epsilon is None else f"{spent.epsilon:.3g}"


def _connection(device: "DeviceStatus") -> str:
    return {True: "connected", False: "gone", None: ""}[device.connected]


def _ago(heard: float | None) -> str:
    """How long ago it was; nothing where nobody knows."""
    if heard is None:
        return ""
    seconds = max(0.0, time.time() - heard)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
