"""How closely every runtime trains every model as torch does, by the exporter's own proof; can be resumed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from benchmarks.records import read_records, write_records
from edge_fl.core.bundle import Optimizer
from edge_fl.core.errors import ConfigError, EdgeFLError
from edge_fl.measure.bars import Bars
from edge_fl.measure.table import Result, Row
from exporter.export import export_bundle
from exporter.limits import ADAM_LIMIT, LIMIT
from exporter.measure.cases import BATCH, find_case
from exporter.measure.exported import exporter_digest

__all__ = ["OPTIMIZERS", "Proof", "ProofSetting", "bench_parity"]

_BARS = Bars(
    "Largest relative difference of a weight from torch's (SGD, onnx, lengths logarithmic)",
    ("model",),
    ("weights",),
    where={"size": "full", "runtime": "onnx", "optimiser": "sgd"},
    logarithmic=True,
)

OPTIMIZERS = {
    "sgd": Optimizer(),
    "momentum": Optimizer(momentum=0.9, weight_decay=1e-3, clip=1.0),
    "adam": Optimizer(name="adam"),
}
"""What is proven with: plain SGD; momentum 0.9 with weight decay 1e-3 and clipping at 1; Adam."""


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the table.

    ``weights`` and ``outputs`` are the largest relative differences after ``steps`` steps, and ``refused`` is empty;
    or ``refused`` is the sentence in place of them. ``exporter`` is the digest of the one that made it.
    """

    model: str
    size: str
    runtime: str
    optimizer: str
    exporter: str
    seconds: float
    steps: int = 0
    weights: float = 0.0
    outputs: float = 0.0
    refused: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is a proof of."""
        return (self.model, self.size, self.runtime, self.optimizer)


@dataclass(frozen=True)
class ProofSetting:
    """What is proven: every combination; ``narrowed`` takes the zoo's models with few units."""

    models: tuple[str, ...]
    runtimes: tuple[str, ...]
    optimizers: tuple[str, ...]
    narrowed: bool

    def combinations(self) -> Iterator[tuple[str, str, str, str]]:
        """The combinations as :attr:`Proof.key` has them."""
        size = "narrowed" if self.narrowed else "full"
        for model in self.models:
            for runtime in self.runtimes:
                for optimizer in self.optimizers:
                    yield model, size, runtime, optimizer


def bench_parity(setting: ProofSetting, results: Path, report: Callable[[str], None]) -> Result:
    """Prove what is not yet in ``results``, and tabulate all that is.

    Parameters
    ----------
    results
        A JSON file, written anew after each proof. What another version of the exporter proved is proven again when
        it is asked for.
    report
        Told of what is being done.

    Raises
    ------
    ConfigError, ModelError
        When an optimiser or a model is unknown.
    DataError
        When ``results`` is damaged.
    StateError
        When it cannot be written.
    """
    unknown = [name for name in setting.optimizers if name not in OPTIMIZERS]
    if unknown:
        raise ConfigError(f"There is no optimiser '{unknown[0]}' to prove; there are {', '.join(OPTIMIZERS)}.")
    proofs = {proof.key: proof for proof in read_records(results, Proof)}
    for key in setting.combinations():
        if key in proofs and proofs[key].exporter == exporter_digest():
            continue
        report(", ".join(key))
        proofs[key] = _proven(*key)
        write_records(results, list(proofs.values()))
    return _table([proofs[key] for key in sorted(proofs)])


def _proven(model: str, size: str, runtime: str, optimizer: str) -> Proof:
    case = find_case(model, narrowed=size == "narrowed")
    target = case.target(runtime, OPTIMIZERS[optimizer])
    proof = Proof(model, size, runtime, optimizer, exporter_digest(), seconds=0.0)
    started = time.perf_counter()
    try:
        with TemporaryDirectory() as scratch:
            found = export_bundle(case.build(), target, Path(scratch) / "bundle").manifest.parity[runtime]
    except EdgeFLError as error:
        return replace(proof, seconds=time.perf_counter() - started, refused=str(error))
    return replace(
        proof,
        seconds=time.perf_counter() - started,
        steps=found.steps,
        weights=found.weights,
        outputs=found.outputs,
    )


def _table(proofs: list[Proof]) -> Result:
    refused = [proof for proof in proofs if proof.refused]
    return Result(
        title="Parity with torch",
        command="edge-fl bench parity",
        about="What the exporter measures before it writes a bundle: training steps on compact weights in the runtime, "
        f"against torch's autograd and torch.optim in double precision on the full, masked model, batch {BATCH}. Half "
        "of the steps train the full and half of them half the width, a new random pattern each; programs for any "
        "width also get a different share of each block. Differences are the largest of any tensor, over the largest "
        "entry of that tensor (of Adam's weights: over the norm of the update); "
        f"{LIMIT:g} is refused ({ADAM_LIMIT:g} for Adam; a few times what torch's float32 is off by, where that is "
        "more; a program is refused when it keeps that in none of three draws of batches and patterns). Momentum is "
        "0.9, with weight decay 0.001 and clipping at 1. Seconds are for export and proof. "
        "Rows that are not here have not been run.",
        bars=_BARS,
        rows=[_line(proof, refused) for proof in proofs],
        notes=[proof.refused for proof in refused],
    )


def _line(proof: Proof, refused: list[Proof]) -> Row:
    number = f"refused ({refused.index(proof) + 1})" if proof.refused else ""
    return {
        "model": proof.model,
        "size": proof.size,
        "runtime": proof.runtime,
        "optimiser": proof.optimizer,
        "steps": proof.steps or "",
        "weights": number or f"{proof.weights:.1e}",
        "outputs and loss": number or f"{proof.outputs:.1e}",
        "seconds": proof.seconds,
    }
