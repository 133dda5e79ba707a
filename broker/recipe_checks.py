"""Whether a recipe, a bundle and a run's settings fit together: checked before any device is asked."""

import logging
from collections.abc import Iterable, Sequence

from broker.private_runs import check_private
from broker.products import check_products
from broker.programs import missing_program
from broker.secure_aggregation.settings import check_secure
from broker.statistics_round import collects, drops_units
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import prefix_counts
from edge_fl.methods.base import DropoutMethod, Method
from edge_fl.methods.capabilities import (
    ChecksBundle,
    CollectsStatistics,
    MasksLabels,
    TrainsWidths,
    evaluated_width,
)
from edge_fl.recipes.recipe import Recipe
from edge_fl.runs.config import RunConfig
from edge_fl.runtimes.base import check_programs
from edge_fl.training.batch_statistics import collectable

__all__ = ["check_recipe"]

_log = logging.getLogger(__name__)
_LONG_FOR_ADAM = 0.03  # each weight moves by about as much in every step, whatever its gradient


def check_recipe(
    bundle: Bundle, recipe: Recipe, config: RunConfig, *, tiers: int | None = None, runtime: str | None = None
) -> None:
    """Refuse before any device is asked what no device of a tier could do: ConfigError.

    ``tiers`` is how many tiers there are, None where it is not known: then it is as many as the method tells apart.
    ``runtime`` is the one that all train in, None where it may be any of the bundle's.
    """
    method = recipe.method
    _ = recipe.rule  # raises for a name that is none
    if runtime is not None:
        check_programs(runtime, bundle)
    programs = [name for name in bundle.manifest.programs if runtime in (None, name)]
    present = range(method.tiers if tiers is None else min(tiers, method.tiers))
    check_products(config, recipe)
    check_secure(config, recipe, bundle.manifest)
    check_private(config, recipe, bundle.manifest)
    if isinstance(method, ChecksBundle) and (reason := method.unfit(bundle.manifest)):
        raise ConfigError(reason)
    _check_collected(bundle, method, config, present, programs)
    _check_statistics_every(bundle.layout, config)
    _warn_of_what_it_leaves_out(bundle, method)
    _warn_of_long_steps(bundle, config)
    beyond = range(method.tiers if tiers is None else tiers, method.tiers)
    if any(method.counts(bundle.layout, tier) != method.counts(bundle.layout, 0) for tier in beyond):
        _log.warning(
            "'%s' tells %d tiers apart, and there are clients of %d: for all of them give --tiers %d",
            *(method.name, method.tiers, tiers, method.tiers),
        )
    for tier in present:
        _check_tier(bundle, method, tier, config.batch, programs)


def _warn_of_long_steps(bundle: Bundle, config: RunConfig) -> None:
    if bundle.manifest.optimizer.name == "adam" and config.lr > _LONG_FOR_ADAM:
        _log.warning(
            "The bundle trains with Adam, for which a step size of %g is long: 0.001 is usual (--lr).", config.lr
        )


def _warn_of_what_it_leaves_out(bundle: Bundle, method: Method) -> None:
    """What the method would do, and does not for this bundle."""
    if isinstance(method, MasksLabels) and method.masks_labels and bundle.manifest.loss == "cross_entropy":
        _log.warning(
            "'%s' trains without masked cross-entropy, as the bundle's loss is plain: to leave out the classes that a "
            "client has no samples of, export with --loss masked_cross_entropy",
            method.name,
        )
    wanted = isinstance(method, CollectsStatistics) and method.collects_statistics and bundle.layout.statistics
    if wanted and not collectable(bundle.manifest):
        _log.warning(
            "'%s' collects no BatchNorm statistics of this bundle, whose steps leave them as they were exported; "
            "export it with --batch-norm per-width",
            method.name,
        )
    if _is_asked_to_drop(method) and not drops_units(method, bundle.layout):
        _log.warning(
            "'%s' drops no unit of this model at its rates: it leaves recurrent blocks whole, or blocks are too small",
            method.name,
        )


def _is_asked_to_drop(method: Method) -> bool:
    return isinstance(method, DropoutMethod) and any(map(method.dropout, range(method.tiers)))


def _check_collected(
    bundle: Bundle, method: Method, config: RunConfig, present: Iterable[int], programs: Sequence[str]
) -> None:
    """Refuse a run that is to collect statistics and cannot, or whose earlier models would lack them: ConfigError."""
    collected = collects(config, method, bundle.manifest)
    if config.keep_best is not None and collected:
        raise ConfigError(
            f"'{method.name}' collects BatchNorm's statistics after the last round, and earlier models lack them: "
            "leave --keep-best out, or give --no-collect-statistics."
        )
    if config.collect_statistics and not collected:
        raise ConfigError(
            "The bundle's steps bring no BatchNorm statistics up to date: leave --collect-statistics out, or export it "
            "with --batch-norm tracked."
        )
    for tier in present if collected else ():
        _check_collecting(bundle, method, tier, config.batch, programs)
    _warn_of_shift(bundle, method, config, collected=collected)


def _check_collecting(bundle: Bundle, method: Method, tier: int, batch: int, programs: Sequence[str]) -> None:
    """Refuse where no device of a tier could collect statistics: ConfigError."""
    width = evaluated_width(method, tier)
    counts = prefix_counts(bundle.layout, width)
    if not any(bundle.manifest.step_program(name, "plain", counts, batch) for name in programs):
        raise ConfigError(
            f"Devices collect statistics with the train step 'plain' of width {width / 1000:g}, which the bundle "
            f"lacks: export it with {width / 1000:g} among its --widths, or give --no-collect-statistics."
        )


def _warn_of_shift(bundle: Bundle, method: Method, config: RunConfig, *, collected: bool) -> None:
    if not collectable(bundle.manifest):
        return
    narrow = isinstance(method, TrainsWidths) and method.ordered and method.tiers > 1
    if narrow and bundle.manifest.batch_norm == "tracked" and not collected:
        _log.warning(
            "'%s' trains several widths, whose BatchNorm statistics differ, and the bundle has one set: scores may be "
            "low; export it with --batch-norm per-width, or give --collect-statistics",
            method.name,
        )
    if not drops_units(method, bundle.layout):
        return
    consequence = "the full model's scores are too low"
    if collected:
        consequence = "scores are too low until devices collect those of the full model, after the last round"
    elif config.secure is None and config.privacy is None and config.keep_best is None:
        consequence += "; --collect-statistics has devices collect its own at the end"
    _log.warning("'%s' shifts BatchNorm's statistics by dropping units: %s", method.name, consequence)


def _check_statistics_every(layout: Layout, config: RunConfig) -> None:
    every = config.statistics_every
    if every > 1 and not layout.statistics:
        _log.warning("the model has no BatchNorm statistics, so --statistics-every %d changes nothing", every)
    elif config.evaluate_every % every:
        said = "rounds without BatchNorm's statistics are scored with those of an earlier round"
        if config.keep_best is not None or config.rollback is not None:
            raise ConfigError(
                f"--keep-best and --rollback go by scores, and {said}: give --evaluate-every {every}, too."
            )
        _log.warning("%s: give --evaluate-every %d, too", said, every)


def _check_tier(bundle: Bundle, method: Method, tier: int, batch: int, programs: Sequence[str]) -> None:
    for _, counts in method.programs(bundle.layout, tier):
        if block := next((block for block, count in counts.items() if count == 0), None):
            raise ConfigError(f"'{method.name}' would keep no unit of block '{block}' in tier {tier}; drop less.")
    missing = {name: missing_program(bundle, name, method, tier, batch) for name in programs}
    reasons = {name: reason for name, reason in missing.items() if reason}
    if reasons and len(reasons) == len(missing):
        raise ConfigError(next(iter(reasons.values())))
    for name, reason in reasons.items():
        _log.warning("devices of tier %d with %s cannot take part: %s", tier, name, reason)
    held = bundle.manifest.statistic_widths
    widths = method.statistic_widths(tier) if isinstance(method, TrainsWidths) else ()
    without = sorted(set(widths) - set(held), reverse=True)
    if held and without:
        raise ConfigError(
            f"'{method.name}' needs BatchNorm statistics of the widths {_words(without)} in tier {tier}, and the "
            f"bundle has those of {_words(held)}: export it with {_words(without)} among its --widths, or set others."
        )


def _words(widths: Sequence[int]) -> str:
    return ", ".join(f"{width / 1000:g}" for width in widths)
