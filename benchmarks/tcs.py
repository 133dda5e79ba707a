"""TCS's experiments: accuracy and bits against top-K and dense updates (Ozfatura et al., 2021, section III)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log2
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.accounting import layout_of
from benchmarks.figures import accuracy_figures, by_dataset, curves_of, deviation, down_shares, finals, notes_of
from benchmarks.grid import Choice, Entry, Filled, Filling, entry, fill
from benchmarks.plots import panels
from benchmarks.reference import TCS_ACCURACY
from benchmarks.setups import LR_DROPS, setup_of
from edge_fl.compressors.tcs import TcsParameters
from edge_fl.core.errors import ConfigError
from edge_fl.measure.table import Picture, Result, Row

__all__ = ["VARIANTS", "Variant", "bench_tcs", "bits"]

_CLIENTS, _BATCH = 10, 64
_CENTRAL = 128  # the batch of the paper's training without clients, and the one that step sizes are scaled from
_REPORTED = ("cifar-10", "resnet18")
_RISE = (
    "The others' step size rises evenly over the first sixtieth of the rounds. Left out of the paper's are its weight "
    "decay of 1e-4 and top-K's warm-up."
)
_NO_RISE = (
    "Left out of the paper's are its weight decay of 1e-4, the rise of the step size in the first epochs, and top-K's "
    "warm-up."
)
_COLLECTED = (
    " Clients of `collected` send BatchNorm's statistics in the last round alone, and then, once more and not counted "
    "here, those that they collect for the final model. Until then their model is scored with statistics of its start."
)
_WARM_UP = 60  # one round of so many is dense at first: 5 epochs of 300


@dataclass(frozen=True)
class Variant:
    """A line of the paper's tables: a recipe with its parameters, of ``steps`` local steps a round (H).

    ``central`` is training without clients, of one that has all the data. ``statistics_every`` is RunConfig's.
    Where statistics are ``collected``, updates hold them in the last round alone, and clients then collect the final
    model's.
    """

    recipe: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 1
    warms: bool = False
    central: bool = False
    statistics_every: int = 1
    collected: bool = False

    @property
    def budget(self) -> float | None:
        """The bits a parameter and local step as the paper counts them; None where nothing is left out.

        A position of one in 1 / phi takes ``log2(1 / phi) + 2`` bits in the block code; the entries of the global mask
        take none; a warm-up is left out.
        """
        own = self.parameters
        if self.recipe == "fedavg":
            return None
        if self.recipe == "topk":
            return float(own["topk.ratio"] * (32 + _position(own["topk.ratio"])))
        opened = TcsParameters(bits=own.get("tcs.bits", TcsParameters().bits))
        shared, local = opened.global_ratio, opened.local_ratio
        return float(((shared + local) * opened.bits + local * _position(local)) / self.steps)


def _position(share: float) -> float:
    return log2(1 / share) + 2


VARIANTS: dict[str, Variant] = {
    "centralised": Variant("fedavg", central=True),
    "dense": Variant("fedavg"),
    "top-k": Variant("topk", {"topk.ratio": 0.01, "topk.positions": "block"}),
    "tcs-cold": Variant("tcs"),
    "tcs": Variant("tcs", warms=True),
    "tcs-l2": Variant("tcs", steps=2, warms=True),
    "tcs-l4": Variant("tcs", steps=4, warms=True),
    "tcs-l4-q5": Variant("tcs", {"tcs.bits": 5}, steps=4, warms=True),
    "tcs-l4-q5-s10": Variant("tcs", {"tcs.bits": 5}, steps=4, warms=True, statistics_every=10),
    "tcs-l4-q5-collected": Variant("tcs", {"tcs.bits": 5}, steps=4, warms=True, collected=True),
    "tcs-lf": Variant("tcs", {"tcs.fairness": "lf"}, warms=True),
    "tcs-plf": Variant("tcs", {"tcs.fairness": "plf"}, warms=True),
    "tcs-momentum": Variant("tcs", {"server.momentum": 0.9}, warms=True),
}
"""By the paper's names; ``tcs-cold`` has no warm-up, nor has ``top-k``. Updates of ``s10`` hold BatchNorm's statistics
every tenth round, those of ``collected`` in the last, which the paper does not have."""


def bench_tcs(
    choice: Choice, how: Filling, variants: Sequence[str] | None = None, *, rises: bool = False
) -> Result:
    """Make a run of each variant, all of as many local steps.

    Parameters
    ----------
    choice
        Its ``rounds`` are local steps, of which a variant makes H a round; ``clients`` are all picked (10 for None).
    variants
        Among :data:`VARIANTS`; None for all that every model can be trained by.
    rises
        Whether the step size of all but ``centralised`` rises over the first rounds, as in the paper.

    Raises
    ------
    EdgeFLError
        As :func:`benchmarks.grid.fill` does, and ConfigError for an unknown variant, or one that collects statistics of
        a model without BatchNorm.
    """
    if variants is None:
        variants = [name for name, variant in VARIANTS.items() if not variant.collected]
    for name in variants:
        if name not in VARIANTS:
            raise ConfigError(f"There is no variant '{name}' of TCS; there are {', '.join(VARIANTS)}.")
    found, missing = fill(
        [_entry(choice, d, name, rises=rises) for d in choice.datasets for name in variants], how
    )
    return Result(
        title="Time-correlated sparsification",
        command=choice.command("tcs") + "".join(f" --variant {name}" for name in variants) + " --rise" * rises,
        about=f"TCS and its variants against top-K and dense updates: {choice.clients or _CLIENTS} clients of equal, "
        f"random parts, all of them in every round, {choice.rounds} local steps of a batch of {_BATCH}, H a round. "
        "Bits are those of frames, up, for each parameter and local step, a dense frame being 32 bits; the second "
        "column leaves out the warm-up, as the paper's budget does: a sixtieth of the rounds, in which everything is "
        "sent. The third leaves out BatchNorm's statistics, too, which the paper does not count; with it the budget is "
        "compared. Down is the most a client is sent in a round, model and mask, as a share of the model. The paper "
        "trains ResNet-18 on CIFAR-10 for 300 epochs at step size 0.5. As there, it is divided by 10 at half and at "
        "three quarters of the training. `centralised` takes as many images as the clients together, in batches of "
        f"{_CENTRAL} or a few more. Its step size is smaller by as much as its batch is. "
        + (_RISE if rises else _NO_RISE)
        + _COLLECTED * any(VARIANTS[name].collected for name in variants),
        rows=[_row(filled) for filled in found],
        notes=notes_of(found, missing),
        pictures=[
            Picture(dataset, f"Accuracy on {dataset} against bits and samples", partial(_draw, dataset, group))
            for dataset, group in by_dataset(found).items()
        ],
    )


def bits(filled: Filled, *, warm: bool = True, statistics: bool = True) -> float | None:
    """Bits of an update for each parameter and local step, the mean of all rounds, or of those after the warm-up.

    Without ``statistics`` those of BatchNorm are left out, as the paper leaves them out. None where there is no such
    round.
    """
    skipped = 0 if warm else _warm_rounds(filled)
    left_out = 0 if statistics else _statistics_bytes(filled.run.case().name)
    sends = filled.run.config().sends_statistics
    shares = [
        32 * (m.uplink - left_out * sends(number)) / (record.dense - left_out)
        for record in filled.records
        for number, m in enumerate(record.rounds[skipped:], skipped + 1)
    ]
    return mean(shares) / filled.run.local_steps if shares else None


def _statistics_bytes(model: str) -> int:
    """What BatchNorm's statistics take in a frame: float32, never compressed."""
    return 4 * sum(tensor.size for tensor in layout_of(model).statistics)


def _entry(choice: Choice, dataset: str, name: str, *, rises: bool) -> Entry:
    variant, clients = VARIANTS[name], choice.clients or _CLIENTS
    rounds = -(-choice.rounds // variant.steps)
    parameters = dict(variant.parameters)
    warm = -(-rounds // _WARM_UP)
    if variant.warms:
        parameters["tcs.warmup"] = warm
    local: dict[str, Any] = {
        "local_steps": variant.steps,
        "batch": _BATCH,
        "lr_warmup": min(warm, rounds - 1) * rises,
        "statistics_every": rounds if variant.collected else variant.statistics_every,
        "collect_statistics": variant.collected or None,
    }
    if variant.central:
        steps = max(1, clients * _BATCH // _CENTRAL)
        rate = setup_of(dataset).lr if choice.lr is None else choice.lr
        local = {"local_steps": steps, "batch": clients * _BATCH // steps, "lr": rate / steps}
        clients = 1
    made = entry(
        choice,
        dataset,
        variant.recipe,
        {"variant": name},
        parameters,
        rounds=rounds,
        clients=clients,
        clients_per_round=clients,
        partition="iid",
        lr_drops=LR_DROPS,
        **local,
    )
    if variant.collected and not (case := made.runs[0].case()).normalised:
        raise ConfigError(
            f"'{name}' collects BatchNorm's statistics, of which '{case.name}' has none: leave it out."
        )
    return made


def _warm_rounds(filled: Filled) -> int:
    rounds: int = filled.run.parameters.get("tcs.warmup", 0)
    return rounds


def _row(filled: Filled) -> Row:
    variant, name = VARIANTS[str(filled.entry.columns["variant"])], str(filled.entry.columns["variant"])
    theirs, ours = TCS_ACCURACY.get(name), finals(filled)
    budget = variant.budget
    sent, after = (None, None) if variant.central else (bits(filled), bits(filled, warm=False))
    alone = None if variant.central else bits(filled, warm=False, statistics=False)
    down = [] if variant.central else down_shares(filled)
    dataset, model = own = filled.run.dataset, filled.run.case().name
    return {
        "data set": dataset,
        "model": model,
        **filled.entry.columns,
        "H": "" if variant.central else str(variant.steps),
        **accuracy_figures(filled),
        "paper's on CIFAR-10 (%)": f"{theirs:.2f}" if theirs else "",
        "difference": mean(ours) - theirs if theirs and ours and own == _REPORTED else "",
        "bits": "" if sent is None else f"{sent:.4f}",
        "after warm-up": "" if after is None else f"{after:.4f}",
        "without statistics": "" if alone is None else f"{alone:.4f}",
        "paper's budget": f"{budget:.4f}" if budget else "",
        "bits - budget (%)": 100 * (alone / budget - 1) if budget and alone else "",
        "32 / bits": 32 / after if after else "",
        "... without statistics": 32 / alone if alone else "",
        "down": mean(down) if down else "",
    }


def _draw(dataset: str, group: Sequence[Filled], path: Path) -> None:
    with panels(path, columns=2, title=dataset) as (left, right):
        for filled in group:
            rounds, curves = curves_of(filled)
            run, values = filled.run, finals(filled)
            samples = run.clients * run.local_steps * run.batch * rounds
            (line,) = left.plot(samples, curves.mean(axis=0), label=filled.entry.label)
            if VARIANTS[str(filled.entry.columns["variant"])].central:
                right.axhline(mean(values), color=line.get_color(), linestyle="--")
                continue
            x, y, error = bits(filled) or 0.0, mean(values), deviation(values)
            right.errorbar([x], [y], [error], marker="o", capsize=3, color=line.get_color())
        left.set(xlabel="samples trained on", ylabel="held-out accuracy (%)")
        right.set(xlabel="bits a parameter and local step, up", xscale="log")
        right.set(ylabel="held-out accuracy after the last round (%)")
