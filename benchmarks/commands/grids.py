"""The benchmarks that are grids of simulated runs: each run is made once and kept in a file they all share."""

from typing import Annotated

import typer

from benchmarks.aggregation_rule import BOUNDARIES, LOCAL_STEPS, RATES, bench_aggregation_rule
from benchmarks.attack import DEFENCES, SHARES, bench_attack
from benchmarks.clusters import Clusters
from benchmarks.commands.grid_options import IMAGES, grid
from benchmarks.dropout_rate import RATES as DROPOUT_RATES
from benchmarks.dropout_rate import bench_dropout_rate
from benchmarks.grid import Choice, Filling
from benchmarks.heterogeneous import bench_heterogeneous, bench_od
from benchmarks.hostile import ATTACKS
from benchmarks.paper_tables import bench_table1, bench_table2
from benchmarks.privacy import CLIP, DELTA, EPSILONS, bench_privacy
from benchmarks.readings import bench_readings
from benchmarks.regime import BATCHES, PARTITIONS, Settings, bench_regime
from benchmarks.regime import LOCAL_STEPS as REGIME_LOCAL_STEPS
from benchmarks.regime import RATES as REGIME_RATES
from benchmarks.tcs import VARIANTS, bench_tcs
from benchmarks.tta import bench_tta
from benchmarks.uplink import bench_uplink
from benchmarks.vardrop import bench_vardrop
from device_sim.simulation.links import find_link
from edge_fl.core.share import thousandths
from edge_fl.measure.table import Result

__all__ = [
    "aggregation_rule",
    "attack",
    "dropout_rate",
    "heterogeneous",
    "od",
    "privacy",
    "readings",
    "regime",
    "table1",
    "table2",
    "tcs",
    "tta",
    "uplink",
    "vardrop",
]

_ROUNDS = (Annotated[int, typer.Option(help="Rounds.")], 500)
_EPOCH = (
    Annotated[
        int | None,
        typer.Option(min=1, help="Local SGD steps a round (V) [default: 7, an epoch of a FEMNIST writer]."),
    ],
    None,
)


def _all_picked(clients: int) -> tuple[object, None]:
    text = f"Clients, all picked every round [default: {clients}]."
    return Annotated[int | None, typer.Option(min=1, help=text)], None


@grid("table1", IMAGES)
def table1(choice: Choice, how: Filling) -> Result:
    """FedBIAD's Table I: dropping methods by data set, accuracy and uplink, beside the paper's numbers.

    Example: edge-fl bench table1 --dataset mnist --time-budget 120 -o docs/benchmarks/table1.md
    """
    return bench_table1(choice, how)


@grid("table2", IMAGES)
def table2(choice: Choice, how: Filling) -> Result:
    """FedBIAD's Table II: compressors alone and on dropping methods, beside the paper's numbers.

    Example: edge-fl bench table2 --dataset fashion-mnist --method fedbiad+dgc -o docs/benchmarks/table2.md
    """
    return bench_table2(choice, how)


@grid("tta", IMAGES, without=["evaluate_every"])
def tta(
    choice: Choice,
    how: Filling,
    *,
    link: Annotated[
        str,
        typer.Option(help="3g, dsl, cable, 4g, lte, wifi, 5g or fibre, or Mbps down and up, such as 110.6/14."),
    ] = "5g",
    slowdown: Annotated[float, typer.Option(help="How much longer a step takes on a client than here.")] = 1.0,
) -> Result:
    """Virtual time to the paper's target accuracies, of the runs of Table I.

    Example: edge-fl bench tta --dataset fashion-mnist --link lte --slowdown 10 -o docs/benchmarks/tta.md
    """
    return bench_tta(choice, how, find_link(link), slowdown)


@grid("dropout-rate", ["fashion-mnist"])
def dropout_rate(
    choice: Choice,
    how: Filling,
    *,
    rate: Annotated[
        list[float] | None, typer.Option(help="p; repeat for several [default: 0.1, 0.2 ... 0.7].")
    ] = None,
) -> Result:
    """Accuracy and uplink of FedBIAD and FedDrop against the dropout rate.

    Example: edge-fl bench dropout-rate --method fedbiad --rate 0.3 --rate 0.6 -o docs/benchmarks/dropout-rate.md
    """
    return bench_dropout_rate(choice, how, tuple(thousandths(p) for p in rate) if rate else DROPOUT_RATES)


@grid("aggregation-rule", IMAGES, without=["method"])
def aggregation_rule(
    choice: Choice,
    how: Filling,
    *,
    local_steps: Annotated[
        list[int] | None, typer.Option(min=1, help="V; repeat for several [default: 20, 60].")
    ] = None,
    lr: Annotated[
        list[float] | None, typer.Option(help="A step size; repeat for several [default: 0.05, 0.1].")
    ] = None,
    stage_boundary: Annotated[
        list[int] | None,
        typer.Option(min=0, help="R_b, besides the paper's, with the default rule; repeat [default: 30, 0]."),
    ] = None,
) -> Result:
    """FedBIAD's eq. (10) against other aggregation rules, with and without scaling, by step size, V and R_b.

    Example: edge-fl bench aggregation-rule --dataset mnist --seed 0 --lr 0.05 -o docs/benchmarks/aggregation-rule.md
    """
    return bench_aggregation_rule(
        choice, how, lr or RATES, local_steps or LOCAL_STEPS, stage_boundary or BOUNDARIES
    )


@grid("readings", ["fashion-mnist"], without=["method"])
def readings(choice: Choice, how: Filling) -> Result:
    """FedBIAD's readings: tau in steps or passes, and which losses judge a pattern; accuracy, and what is redrawn.

    Example: edge-fl bench readings --dataset fashion-mnist --seed 0 -o docs/benchmarks/readings.md
    """
    return bench_readings(choice, how)


@grid("regime", ["fashion-mnist"])
def regime(
    choice: Choice,
    how: Filling,
    *,
    partition: Annotated[
        list[str] | None,
        typer.Option(help="labels=2, dirichlet=0.5, iid ...; repeat [default: labels=2, labels=5]."),
    ] = None,
    local_steps: Annotated[
        list[int] | None, typer.Option(min=1, help="V; repeat for several [default: 5, 20, 60].")
    ] = None,
    lr: Annotated[
        list[float] | None, typer.Option(help="A step size; repeat for several [default: 0.01, 0.05, 0.1].")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Samples a batch; repeat for several [default: 20].")
    ] = None,
) -> Result:
    """FedAvg, or other methods, in settings that FedBIAD's paper leaves open: where is its accuracy and deviation?

    Example: edge-fl bench regime --method fedavg --method fedbiad --partition labels=2 --local-steps 20
    """
    settings = Settings(
        partition or PARTITIONS, local_steps or REGIME_LOCAL_STEPS, lr or REGIME_RATES, batch or BATCHES
    )
    return bench_regime(choice, how, settings)


@grid("attack", ["fashion-mnist"], without=["evaluate_every"])
def attack(
    choice: Choice,
    how: Filling,
    *,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="label-flip, sign-flip, scaling, noise or little-is-enough; repeat [default: all]."),
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(help="Share of a round's clients that attack; repeat [default: 0.1, 0.2, 0.4]."),
    ] = None,
    defence: Annotated[
        list[str] | None,
        typer.Option(help="none, default, or a rule as --robust has it; repeat [default: all]."),
    ] = None,
    tier: Annotated[
        int | None, typer.Option(min=0, help="All attackers are of this tier [default: evenly over tiers].")
    ] = None,
) -> Result:
    """Hostile clients against each robust rule, and without any: accuracy that is left.

    Example: edge-fl bench attack --attack sign-flip --share 0.2 --defence none --defence trimmed_mean --seed 0
    """
    return bench_attack(
        choice,
        how,
        attack or tuple(ATTACKS),
        share or SHARES,
        tuple(name.replace("-", "_") for name in defence or DEFENCES),
        tier=tier,
    )


@grid(
    "privacy",
    ["fashion-mnist"],
    without=["evaluate_every"],
    local_steps=(Annotated[int, typer.Option(min=1, help="Local SGD steps a round (V).")], 20),
    lr=(Annotated[float, typer.Option(help="SGD step size.")], 0.1),
)
def privacy(
    choice: Choice,
    how: Filling,
    *,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="What all rounds may cost; repeat [default: 1, 2, 4, 8].")
    ] = None,
    delta: Annotated[float, typer.Option(help="The chance that the promise fails.")] = DELTA,
    clip: Annotated[float, typer.Option(help="The largest L2 norm of an update.")] = CLIP,
) -> Result:
    """Accuracy against epsilon: central differential privacy, by dp-accounting.

    Example: edge-fl bench privacy --method fedavg --epsilon 4 --seed 0 -o docs/benchmarks/privacy.md
    """
    return bench_privacy(choice, how, epsilon or EPSILONS, delta=delta, clip=clip)


@grid("uplink", ["fashion-mnist"])
def uplink(choice: Choice, how: Filling) -> Result:
    """Accuracy against uplink: every method, compressor and preset on one plane.

    Example: edge-fl bench uplink --method fedbiad+dgc --method best-uplink -o docs/benchmarks/uplink.md
    """
    return bench_uplink(choice, how)


@grid("heterogeneous", ["femnist"], without=["evaluate_every"], rounds=_ROUNDS, local_steps=_EPOCH)
def heterogeneous(
    choice: Choice,
    how: Filling,
    *,
    clusters: Annotated[
        list[int] | None, typer.Option(help="5 for uniform-5, or 2, 4, 8 or 10; repeat for several [default: 5].")
    ] = None,
    drop_scale: Annotated[
        list[float] | None,
        typer.Option(help="Each cluster but the ablest is this / clusters of all clients; repeat [default: 1]."),
    ] = None,
) -> Result:
    """Accuracy by the width of the model, of methods for clients of different means, FEMNIST by writer.

    Example: edge-fl bench heterogeneous --clusters 10 --drop-scale 0.5 --seed 0 -o docs/benchmarks/heterogeneous.md
    """
    settings = [Clusters(count, scale) for count in clusters or (5,) for scale in drop_scale or (1.0,)]
    return bench_heterogeneous(choice, how, settings)


@grid("od", ["femnist"], without=["evaluate_every"], rounds=_ROUNDS, local_steps=_EPOCH)
def od(
    choice: Choice,
    how: Filling,
    *,
    clusters: Annotated[
        list[int] | None, typer.Option(help="How many widths FjORD draws from: 2, 4, 5, 8 or 10 [default: 5, 10].")
    ] = None,
) -> Result:
    """Ordered dropout against models trained for one width alone, all clients able to train the whole model.

    Example: edge-fl bench od --clusters 5 --seed 0 -o docs/benchmarks/od.md
    """
    return bench_od(choice, how, [Clusters(count) for count in clusters or (5, 10)])


@grid(
    "tcs",
    ["mnist"],
    without=["method", "local_steps", "partition", "batch"],
    rounds=(Annotated[int, typer.Option(min=1, help="Rounds of one local step; H times fewer of H.")], 1200),
    clients=_all_picked(10),
)
def tcs(
    choice: Choice,
    how: Filling,
    *,
    variant: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(VARIANTS)}; repeat [default: all but those that are collected]."),
    ] = None,
    rise: Annotated[
        bool,
        typer.Option("--rise", help="The step size rises over the first sixtieth of the rounds, as in the paper."),
    ] = False,
) -> Result:
    """TCS and its variants against top-K and dense updates: accuracy and bits, beside the paper's.

    Example: edge-fl bench tcs --dataset cifar-10 --model resnet18 --variant tcs-l4-q5 --variant dense --seed 0
    """
    return bench_tcs(choice, how, variant, rises=rise)


@grid(
    "vardrop",
    ["mnist"],
    without=["method", "local_steps", "lr", "partition", "batch", "weight_decay"],
    rounds=(Annotated[int, typer.Option(min=1, help="Rounds, of one step each.")], 1500),
    clients=_all_picked(4),
)
def vardrop(choice: Choice, how: Filling) -> Result:
    """Variational dropout: how little is left of the model and of its traffic, beside the paper's numbers.

    Example: edge-fl bench vardrop --dataset mnist --model cifarnet --seed 0 -o docs/benchmarks/vardrop.md
    """
    return bench_vardrop(choice, how)
