"""Runs that everything happens to, against the same ones in quiet."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from device_sim.emulation.chaos import FAULTS, Chaos, same_weights
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from exporter.measure.cases import find_case
from exporter.measure.exported import exported

__all__ = ["bench_chaos"]

_BARS = Bars(
    "Seconds of a run with faults, and of the same run simulated", ("broker",), ("seconds", "simulated in (s)")
)

_MODEL = "digits-mlp"


def bench_chaos(settings: Sequence[Chaos], cache: Path, report: Callable[[str], None]) -> Result:
    """Make each run twice, disturbed and quiet; raises RunError when a disturbed one does not end."""
    bundle = exported(find_case(_MODEL), ("onnx",), cache, report)
    rows: list[Row] = []
    for chaos in settings:
        with TemporaryDirectory() as scratch:
            root = Path(scratch)
            disturbed = chaos.run(bundle, root / "chaos", partial(_tell, report, chaos.broker))
            began = time.monotonic()
            quiet = chaos.quiet(bundle, root / "quiet")
            seconds = time.monotonic() - began
            rows.append(
                {
                    "broker": chaos.broker,
                    "rounds": str(len(disturbed.rounds)),
                    "seconds": disturbed.seconds,
                    "simulated in (s)": seconds,
                    "what happened": ", ".join(f"{n} x {name}" for name, n in sorted(disturbed.happened.items())),
                    "turned away": str(sum(sum(metrics.rejections.values()) for metrics in disturbed.rounds)),
                    "same weights": "yes" if same_weights(disturbed.weights, quiet) else "NO",
                }
            )
    first = settings[0]
    return Result(
        title="Chaos",
        command=f"edge-fl bench chaos --method {first.method} --devices {first.devices} --rounds {first.rounds} "
        f"--every {first.every} --seed {first.seed}" + "".join(f" --broker {chaos.broker}" for chaos in settings),
        about=f"{first.devices} device agents and a coordinator, each a process, train the digits perceptron over a "
        f"broker, through links that lose {FAULTS.drop:.0%} of the messages each way, damage {FAULTS.corrupt:.0%}, "
        f"send {FAULTS.duplicate:.0%} twice and hold {FAULTS.delay:.0%} back for up to {FAULTS.delay_seconds:g} s. "
        f"After every {first.every} rounds something is killed (and started again half a second later), stalls for 3 s "
        "or breaks, all kinds in turn, in an order drawn from the seed. Every device is needed in every round, so the "
        "weights must be those of the same run simulated without a network, to the bit.",
        rows=rows,
        bars=_BARS,
    )


def _tell(report: Callable[[str], None], broker: str, text: str) -> None:
    report(f"{broker}: {text}")
