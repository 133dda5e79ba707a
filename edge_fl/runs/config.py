"""What a run is set to; written to the run folder as config.json."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal, TypedDict

import msgspec

from edge_fl import __version__
from edge_fl.core.errors import ConfigError
from edge_fl.core.field_types import settle_fields
from edge_fl.recipes.given import as_given
from edge_fl.recipes.own import code_digests
from edge_fl.runs.privacy import Privacy
from edge_fl.wire.messages import MOST_BATCH, MOST_MEMBERS, MOST_STEPS, check_id

__all__ = ["RunConfig", "SecureAggregation", "SelectionPolicy", "begun", "bounds_beside", "protection_text"]

SelectionPolicy = Literal["random", "least-recent", "availability", "capability"]
_GIVEN = {"secure": "edge_fl.SecureAggregation()", "privacy": "edge_fl.Privacy('central', epsilon=8)"}
_NOT_PRIVATE = frozenset({"rule", "weighting"})
"""Parameters that a private run does not follow: all clients and rows count alike."""


class SecureAggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How updates are summed unseen.

    Devices are summed in cohorts of at most ``cohort``. A row counts that at least ``holders`` of a cohort hold. A
    ``threshold`` (a share) of the cohort must stay until its sum is unmasked. An update changes no entry by more than
    ``reach``: a larger change is cut to that.
    """

    holders: int = 5
    threshold: float = 0.67
    reach: float = 1.0
    cohort: int = 100

    def __post_init__(self) -> None:
        settle_fields(self)
        if not 2 <= self.holders <= self.cohort / 2 or self.cohort > MOST_MEMBERS:
            raise ConfigError(
                f"At least 2 devices hold a row that counts, and a cohort has twice as many at least, and at most "
                f"{MOST_MEMBERS}: not {self.holders} and {self.cohort}."
            )
        if not 0.5 < self.threshold <= 1:
            raise ConfigError(
                f"More than half of a cohort must stay, a share in (0.5, 1], not {self.threshold:g}."
            )
        if not 2**-20 <= self.reach <= 2**20:
            raise ConfigError(f"The reach of an entry is a number from 1e-6 to 1e6, not {self.reach:g}.")


class _Bounds(TypedDict):
    samples_bound: float | None
    norm_bound: float | None
    rollback: float | None


def bounds_beside(
    privacy: Privacy | None,
    secure: SecureAggregation | None,
    *,
    samples_bound: float | None,
    norm_bound: float | None,
    rollback: float | None = None,
) -> _Bounds:
    """The bounds of a :class:`RunConfig` that stay on: the clip of ``privacy`` takes the place of all of them.

    ``norm_bound`` and ``rollback`` look at single updates, which ``secure`` hides.
    """
    unseen = privacy is not None or secure is not None
    return {
        "samples_bound": None if privacy is not None else samples_bound,
        "norm_bound": None if unseen else norm_bound,
        "rollback": None if unseen else rollback,
    }


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run.

    ``clients_per_round`` devices are picked a round, and a round is closed when all have answered, or after
    ``deadline`` seconds when at least ``quorum`` (a fraction) of them have. A device lost for ``gone_after`` seconds is
    not waited for. The first round begins when ``min_clients`` have registered (or ``clients_per_round``, where that is
    more), within ``wait`` seconds. The step size rises evenly to ``lr`` over the first ``lr_warmup`` rounds (Goyal et
    al., 2017, section 2.2). After each of the fractions ``lr_drops`` of the rounds it is a tenth of what it was.
    ``tiers`` says whether a device trains in the tier it ``registered`` with, or (``auto``) in the ablest whose round
    it can finish in time by its own figures. ``selection`` says who of those that are there is picked
    (:mod:`broker.client_selection`). Updates hold BatchNorm's statistics in every ``statistics_every``-th round and in
    the last; in the others the model keeps those that it has. With ``collect_statistics`` devices collect the final
    model's after the last round (None: as the method needs, :func:`broker.statistics_round.collects`).
    The model is evaluated after every ``evaluate_every``-th round, and after the last, by ``evaluate_on`` devices, too,
    on samples that they hold out. ``test_data`` names the held-out data (None: the test split of the bundle's data set,
    if it has one), ``scores`` what is computed there (none: what is usual for the loss). ``code`` names the user's own
    objects that the run needs on this machine, as :class:`edge_fl.core.registry.Registry` loads them.
    ``initial_weights`` are a file's or another run's that the run starts from (None: the bundle's). The final weights
    are those of the round with the best ``keep_best`` (a score, or ``loss``), if one is named; then the run ends after
    ``patience`` evaluations that were no better, if that is above 0. No more than ``max_devices`` may register. A
    client that trains on more than ``max_samples`` counts for so many, wherever samples are weights, and with a
    ``samples_bound`` for that many times the median client's at most. With a ``norm_bound`` an update that is larger
    than so many times the median is scaled down, and one that is more than twice as large is left out. A rule that is
    ``robust`` withstands a share of hostile ``attackers`` (:mod:`edge_fl.aggregation.robust`). A model whose held-out
    loss is more than ``rollback`` times the median of the last evaluations is made again without the updates that
    ruined it (:mod:`broker.rollback`). ``exact_sums`` are the same bits in any order
    (:mod:`edge_fl.aggregation.exact_sums`). With ``secure`` the coordinator learns sums of updates alone
    (:mod:`edge_fl.secure_aggregation`). With ``privacy`` updates are clipped and noised (:mod:`broker.privacy`).
    ``about`` tells people when, by which version and of what the run was begun. With a ``buffer`` rounds do not wait
    for whom they asked, ``quorum`` means nothing, and ``deadline`` is one client's (:mod:`broker.buffered`).
    """

    run: str
    method: str
    parameters: dict[str, Any]
    rounds: int
    clients_per_round: int
    local_steps: int
    batch: int
    lr: float
    seed: int
    lr_drops: tuple[float, ...] = ()
    lr_warmup: int = 0
    deadline: float = 120.0
    quorum: float = 0.5
    gone_after: float = 15.0
    wait: float = 300.0
    min_clients: int = 1
    tiers: Literal["registered", "auto"] = "registered"
    selection: SelectionPolicy = "random"
    statistics_every: int = 1
    collect_statistics: bool | None = None
    evaluate_every: int = 1
    evaluate_on: int = 0
    buffer: int = 0
    test_data: str | None = None
    scores: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    initial_weights: str | None = None
    keep_best: str | None = None
    patience: int = 0
    max_devices: int = 100_000
    max_samples: int | None = None
    samples_bound: float | None = None
    norm_bound: float | None = None
    robust: str | None = None
    attackers: float = 0.25
    rollback: float | None = None
    exact_sums: bool = False
    secure: SecureAggregation | None = None
    privacy: Privacy | None = None
    about: dict[str, Any] = {}

    def __post_init__(self) -> None:
        settle_fields(self, _GIVEN)
        check_id(self.run)
        for name in (
            "rounds",
            "clients_per_round",
            "local_steps",
            "min_clients",
            "statistics_every",
            "evaluate_every",
            "max_samples",
            "max_devices",
        ):
            most, value = MOST_STEPS if name == "local_steps" else 2**31 - 1, getattr(self, name)
            if value is not None and not 1 <= value <= most:
                told = name if name.endswith("_every") else f"The number of {name.replace('_', ' ')}"
                raise ConfigError(f"{told} must be at least 1 and at most {most}, not {value}.")
        if not 0 <= self.buffer <= self.clients_per_round:
            raise ConfigError(
                f"A buffer of {self.buffer} updates never fills while {self.clients_per_round} clients train at a "
                "time: raise --clients-per-round."
            )
        self._check_statistics()
        if self.evaluate_on < 0:
            raise ConfigError(f"Models are evaluated on 0 devices or more, not on {self.evaluate_on}.")
        if self.evaluate_on and self.buffer:
            raise ConfigError(
                "An evaluation on devices would break off the training that some are always at in a buffered run: "
                "leave --evaluate-on or --buffer out."
            )
        if self.patience < 0 or (self.patience and self.keep_best is None):
            raise ConfigError(
                f"A patience of {self.patience} counts evaluations that are no better than the best: give 1 or more, "
                "and --keep-best with the score."
            )
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"A seed is a whole number from 0 to 2^63 - 1, not {self.seed}.")
        if not 1 <= self.batch <= MOST_BATCH:
            raise ConfigError(f"A batch must hold 1 to {MOST_BATCH} samples, not {self.batch}.")
        if not 0 < self.quorum <= 1:
            raise ConfigError(f"The quorum is a fraction in (0, 1], not {self.quorum}.")
        for name in ("lr", "deadline", "gone_after", "wait"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"A run needs a {name.replace('_', ' ')} above 0, not {getattr(self, name)}.")
        self._check_bounds()
        self._check_lr()

    def _check_statistics(self) -> None:
        reasons = {
            "secure aggregation sums all that is trained": self.secure is not None,
            "a private run sends no statistics": self.privacy is not None,
            "a buffer mixes updates of several rounds": self.buffer > 0,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        if self.statistics_every > 1 and reason:
            raise ConfigError(
                f"Statistics cannot be left out of some rounds, as {reason}: leave --statistics-every out."
            )

    def _check_lr(self) -> None:
        if not all(a < b for a, b in pairwise((0, *self.lr_drops, 1))):
            drops = ", ".join(f"{drop:g}" for drop in self.lr_drops)
            raise ConfigError(
                f"The step size drops after fractions of the rounds that grow inside (0, 1), not {drops}."
            )
        if not 0 <= self.lr_warmup < max(self.rounds, 1):
            raise ConfigError(
                f"The step size rises over fewer rounds than the run has ({self.rounds}), not over {self.lr_warmup}."
            )

    def _check_bounds(self) -> None:
        for name in ("samples_bound", "norm_bound", "rollback"):
            factor = getattr(self, name)
            if factor is not None and not 1 <= factor < float("inf"):
                raise ConfigError(
                    f"The {name.replace('_', ' ')} is a number of medians, 1 or more, not {factor:g}."
                )
        if self.exact_sums and (self.robust is not None or self.secure is not None):
            raise ConfigError(
                "A robust rule is no sum, and secure aggregation has exact sums by itself: leave --exact-sums out."
            )
        if not 0 <= self.attackers < 0.5:
            raise ConfigError(f"A rule withstands a share of attackers in [0, 0.5), not {self.attackers:g}.")

    @property
    def by_chance(self) -> bool:
        """Whether each device is asked with the same chance, whoever else is (:meth:`broker.privacy.Lots.draw`)."""
        return self.privacy is not None and self.privacy.kind == "central" and self.selection == "random"

    @property
    def needed(self) -> int:
        """How many updates close a round: the quorum of those picked, rounded up."""
        return math.ceil(self.quorum * self.clients_per_round - 1e-9)  # 0.07 * 100 is a little more than 7

    def evaluates(self, round: int) -> bool:
        """Whether the model is evaluated after a round, counted from 1."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def sends_statistics(self, round: int) -> bool:
        """Whether the updates of a round, counted from 1, hold BatchNorm's statistics."""
        return round % self.statistics_every == 0 or round == self.rounds

    def lr_of(self, round: int) -> float:
        """The step size of a round, counted from 1."""
        drops = sum(round > drop * self.rounds + 1e-9 for drop in self.lr_drops)  # 0.29 * 100 < 29
        risen = min(round / self.lr_warmup, 1.0) if self.lr_warmup else 1.0
        return self.lr * risen / float(10**drops)


def begun(config: RunConfig, parameters: Mapping[str, Any], **about: Any) -> RunConfig:
    """The config of a run that begins now.

    ``parameters`` are all of the recipe's, defaults too: other defaults of a later version then leave a run that goes
    on as it was. Left out are defaults that JSON cannot hold, and in a private run those that it does not follow.
    ``about`` is what people are told of the run, as values that JSON can hold. Of code that others may not have at hand
    it has the parameters as a person gives them, which of them are defaults, and the files' digests.
    """
    unused = _NOT_PRIVATE if config.privacy is not None else frozenset[str]()
    kept = {key: value for key, value in parameters.items() if key not in unused and _is_finite(value)}
    told: dict[str, Any] = {
        "version": __version__,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        **about,
    }
    if config.code:
        told["code_sha256"] = code_digests(config.code)
        given = as_given(config.method, kept | config.parameters)
        told["parameters"] = {key: each.value for key, each in given.items()}
        told["defaults"] = [key for key, each in given.items() if each.is_default]
    return msgspec.structs.replace(config, parameters=kept | config.parameters, about=told)


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def protection_text(config: RunConfig) -> str:
    """What a run does for the privacy of its devices, behind a comma; nothing where it does nothing."""
    if config.secure is not None:
        return f", secure aggregation of rows that {config.secure.holders} devices hold"
    return "" if config.privacy is None else f", {config.privacy.kind} differential privacy"
