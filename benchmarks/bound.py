"""The generalisation bound of FedBIAD's Theorem 1 against the rounds: eq. (13), (14) and (15) of its paper, as numbers.

The theorem is of a perceptron of ``L`` layers of ``D`` units (and of a recurrent network, which is not worked out
here), ``S`` of whose weights are not zero, on ``d`` inputs. Its ``xi`` (eq. 16) is left out: it is 0 where the clients'
true functions are networks of this structure.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.accounting import counted_bytes, layout_of
from benchmarks.grid import Choice, entry
from benchmarks.plots import panels
from benchmarks.runs import Run
from edge_fl.core.errors import ConfigError
from edge_fl.data.partition import partition
from edge_fl.data.registry import load_dataset
from edge_fl.measure.table import Picture, Result, Row

__all__ = ["RATES", "Network", "bench_bound", "bound", "epsilon", "variance"]

RATES = (0, 200, 500, 800)
"""p, in thousandths."""
_WORST = 2.0
"""The squared distance of two vectors of probabilities, at most."""
_LIKELIHOOD = 1.0
_LARGEST = 2.0
"""B, the least that Assumption 2 lets bound the weights: a larger one only raises the bound."""


@dataclass(frozen=True)
class Network:
    """What Theorem 1 knows of a model: S, L, D and d; ``hidden`` is the widest layer's."""

    nonzero: int
    layers: int
    hidden: int
    inputs: int


def variance(network: Network, m: float, largest: float = _LARGEST) -> float:
    """The posterior variance of a weight, eq. (13), after ``m`` input data, ``largest`` being B."""
    d, reach = network.inputs, largest * network.hidden
    spread = (d + 1 + 1 / (reach - 1)) ** 2 + 1 / (reach**2 - 1) + 2 / (reach - 1) ** 2
    scale = math.log(3 * network.hidden) * (2 * reach) ** (2 * network.layers)
    return network.nonzero / (16 * m * d**2) / scale / spread


def epsilon(network: Network, m: float, largest: float = _LARGEST) -> float:
    """Eq. (15) after ``m`` input data, ``largest`` being B."""
    s, layers, hidden = network.nonzero, network.layers, network.hidden
    return (s / m) * (
        layers * math.log(2 * largest * hidden)
        + 3 * math.log(layers * hidden)
        + largest**2 / 2
        + 2 * math.log(4 * network.inputs * max(m / s, 1))
    )


def bound(epsilon: float, likelihood_variance: float = _LIKELIHOOD) -> float:
    """The right-hand side of eq. (14) without its xi, at the alpha in (0, 1) that makes it least."""
    alpha = math.sqrt(likelihood_variance**2 + likelihood_variance) - likelihood_variance
    return 2 * (likelihood_variance + alpha) / (alpha * (1 - alpha)) * epsilon


def bench_bound(choice: Choice, rates: Sequence[int] = RATES) -> Result:
    """Work the bound out for each dropout rate; no run is made.

    Raises
    ------
    ConfigError
        For a data set whose model is no perceptron, or a rate that makes no sense.
    DataError
        When data cannot be had.
    """
    lines = [_Line.of(choice, dataset, rate) for dataset in choice.datasets for rate in rates]
    return Result(
        title="FedBIAD's bound",
        command=f"{replace(choice, seeds=()).command('bound')}{''.join(f' --rate {rate / 1000:g}' for rate in rates)}",
        about="The upper bound of the mean squared error that FedBIAD's Theorem 1 gives (eq. 14 with xi = 0, eq. 15), "
        "of the models, clients and local steps of [Table I](table1.md). S is the weights of a client's kept rows, as "
        "in the paper's section III (the mean over clients has more), and m the input data of the client that has the "
        "fewest (rounds x V x its samples). What the theorem leaves open is chosen for the least bound: B = 2, and the "
        f"best alpha; the likelihood variance is {_LIKELIHOOD:g}, and one near 0 would divide the bound by "
        f"{bound(1) / 2:.1f}. If softmax is taken as part of the model, the squared distance of two of its outputs is "
        f"{_WORST:g} at most: a bound above says nothing, and `rounds until {_WORST:g}` is how many it would take to "
        "say anything. The posterior variance is eq. (13)'s.",
        rows=[line.row() for line in lines],
        pictures=[
            Picture(
                dataset,
                f"The bound on {dataset} against rounds",
                partial(_draw, [line for line in lines if line.run.dataset == dataset]),
            )
            for dataset in choice.datasets
        ],
    )


@dataclass(frozen=True)
class _Line:
    """A row: the run it is of, its model, and the input data of a round of the client that has the fewest."""

    run: Run
    rate: int
    network: Network
    data: int

    @classmethod
    def of(cls, choice: Choice, dataset: str, rate: int) -> "_Line":
        run = entry(choice, dataset, "fedbiad", {}, {"dropout": [rate]}).runs[0]
        network = _network(run)  # refused before data is asked for
        samples = load_dataset(dataset).train
        fewest = min(map(len, partition(samples, run.clients, run.population().kind)))
        return cls(run, rate, network, run.local_steps * fewest)

    def at(self, round: int) -> float:
        """The bound after ``round`` rounds."""
        return bound(epsilon(self.network, round * self.data))

    def row(self) -> Row:
        rounds, network = self.run.rounds, self.network
        return {
            "data set": self.run.dataset,
            "p": self.rate / 1000,
            "S": f"{network.nonzero:,}",
            "L": str(network.layers),
            "D": str(network.hidden),
            "d": str(network.inputs),
            "m of a round": f"{self.data:,}",
            "after 1 round": self.at(1),
            f"after {rounds}": self.at(rounds),
            f"rounds until {_WORST:g}": f"{self._until_worst():,}",
            f"posterior variance after {rounds}": f"{variance(network, rounds * self.data):.1e}",
        }

    def _until_worst(self) -> int:
        """The first round at which the bound, which only falls, is no more than the worst there is."""
        rounds = range(1, sys.maxsize)
        return rounds[bisect_left(rounds, True, key=lambda number: self.at(number) <= _WORST)]


def _network(run: Run) -> Network:
    layout = layout_of(run.case().name)
    matrices = [tensor for tensor in layout.parameters if len(tensor.shape) == 2]
    vectors = [tensor for tensor in layout.parameters if len(tensor.shape) == 1]
    if len(matrices) + len(vectors) < len(layout.parameters) or len(matrices) != len(layout.blocks) + 1:
        raise ConfigError(f"Theorem 1 is of perceptrons, which the model of '{run.dataset}' is not.")
    counted = counted_bytes(run)
    assert counted is not None  # there is no compressor
    return Network(
        nonzero=round(counted / 4),
        layers=len(matrices),
        hidden=max(block.size for block in layout.blocks),
        inputs=matrices[0].shape[1],
    )


def _draw(lines: Sequence[_Line], path: Path) -> None:
    with panels(path, columns=1, title=lines[0].run.dataset) as (panel,):
        for line in lines:
            rounds = range(1, line.run.rounds + 1)
            panel.plot(rounds, [line.at(r) for r in rounds], label=f"p = {line.rate / 1000:g}")
        panel.axhline(_WORST, color="black", linestyle=":", label="largest error of probabilities")
        panel.set(xlabel="round", ylabel="bound of the mean squared error (eq. 14)", yscale="log")
