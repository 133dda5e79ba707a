"""What FedBIAD's paper runs on each data set, as far as it says so, and what was chosen where it does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_fl.core.errors import ConfigError
from edge_fl.recipes.recipe import open_recipe

__all__ = ["LR_DROPS", "SETUPS", "Setup", "setup_of", "setup_parameters"]

LR_DROPS = (0.5, 0.75)
"""After these fractions of the rounds FjORD and TCS divide the step size by 10."""


@dataclass(frozen=True)
class Setup:
    """One data set's experiment (Xue et al., 2023, section VI-A).

    The paper gives the clients, the dropout rate p and the model. It gives neither V, step size nor batch, and of
    FjORD's, HeteroFL's and FedMP's sub-models the mean upload alone: theirs are those that come nearest to it.

    Parameters
    ----------
    model
        Of the zoo.
    clients, partition
        Who holds what; a tenth of the clients are picked a round.
    dropout
        p, in thousandths.
    pruning
        FedMP's ratio, in thousandths.
    widths, levels
        FjORD's and HeteroFL's, one a tier of equally many clients.
    target
        The accuracy (a fraction) that time is measured to, None where there is none.
    lr, clip
        The step size, and the largest norm of a step's gradients.
    """

    model: str
    clients: int
    partition: str
    dropout: int
    pruning: int
    widths: tuple[int, ...]
    levels: tuple[str, ...]
    target: float | None = None
    lr: float = 0.05
    clip: float | None = None


SETUPS: dict[str, Setup] = {
    "mnist": Setup("mnist-mlp", 1000, "labels=5", 200, 100, (1000, 800, 600), ("a", "a", "b"), 0.9),
    "fashion-mnist": Setup(
        "fashion-mnist-mlp", 1000, "labels=5", 500, 200, (1000, 800, 600, 400), ("a", "b", "b"), 0.8
    ),
    "wikitext-2": Setup(
        "wikitext-2-lstm", 100, "iid", 500, 200, (1000, 800, 600), ("a", "a", "b"), 0.31, lr=1.0, clip=1.0
    ),
    "shakespeare": Setup(
        "shakespeare-rnn", 100, "owners", 500, 200, (1000, 800, 600), ("a", "a", "b"), lr=4.0, clip=1.0
    ),
    "femnist": Setup(
        "femnist-cnn", 105, "owners", 500, 200, (1000, 800, 600, 400, 200), ("a", "b", "b", "c", "d")
    ),
    "cifar-10": Setup(
        "resnet18", 100, "iid", 500, 200, (1000, 800, 600, 400, 200), ("a", "b", "b", "c", "d"), lr=0.1
    ),
    "digits": Setup("digits-mlp", 40, "labels=5", 500, 200, (1000, 800, 600, 400), ("a", "b", "b"), 0.8),
}
"""By data set. ``femnist`` and ``cifar-10`` are FjORD's (Horvath et al., 2021), by writer and in 100 equal parts;
``digits`` is no paper's: it is for trying the benchmarks out.
"""

_PAPERS_ROUNDS = 60  # of which FedBIAD's stage one takes 55, its default: of other numbers it takes the same share

_COMPRESSED: dict[str, dict[str, Any]] = {"stc": {"stc.ratio": 0.0025}}
"""What a compressor is run with, by its name. STC's share of entries is not in the paper; with 65 bits an entry its
ratios of about 200 are those of 1 in 400.
"""


def setup_of(dataset: str) -> Setup:
    """The setup of a data set; ConfigError when it has none."""
    if dataset not in SETUPS:
        raise ConfigError(f"There is no setup for the data set '{dataset}'; there are {', '.join(SETUPS)}.")
    return SETUPS[dataset]


def setup_parameters(setup: Setup, recipe: str, rounds: int) -> tuple[dict[str, Any], int]:
    """What a recipe is run with in ``setup`` for ``rounds``, besides its defaults, and in how many tiers.

    Raises ConfigError when a part of the recipe is unknown.
    """
    opened = open_recipe(recipe, {})
    known = type(opened.method).Parameters.__struct_fields__
    rate = setup.pruning if opened.method.name == "fedmp" else setup.dropout
    given: Mapping[str, tuple[Any, ...]] = {"dropout": (rate,), "widths": setup.widths, "levels": setup.levels}
    by_tier = {key: list(values) for key, values in given.items() if key in known}
    staged = "stage_boundary" in known and rounds != _PAPERS_ROUNDS
    boundary = {"stage_boundary": 55 * rounds // _PAPERS_ROUNDS} if staged else {}
    compressed = {} if opened.compressor is None else _COMPRESSED.get(opened.compressor.name, {})
    return {**by_tier, **boundary, **compressed}, max([1, *map(len, by_tier.values())])
