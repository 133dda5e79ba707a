"""Puts a run together from its parts: what `edge-fl serve` and the demo share."""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.accountant import settled
from broker.broker_log import BROKER_LOG
from broker.buffered import check_buffered
from broker.coordinator import Coordinator
from broker.database import local_url
from broker.defence import Defence
from broker.doors import OF_THE_HOUSE
from broker.envelope import Envelope, open_envelope
from broker.gateway import Gateway
from broker.initial_weights import keep_initial_weights, kept_initial_weights, open_initial_weights
from broker.lease import claim
from broker.model import GlobalModel
from broker.observer import Observer
from broker.open_broker import OpenBroker
from broker.privacy import Lots, Mechanism
from broker.private_runs import check_private
from broker.products import check_products
from broker.programs import missing_program
from broker.rebuilt_record import reopen
from broker.run_folder import SETTINGS, RunFolder, check_no_run, run_of
from broker.secure_aggregation.aggregator import SecureAggregator
from broker.secure_aggregation.settings import check_secure, plan_of
from broker.settings import RunSettings
from broker.statistics_round import collects
from broker.store import Store
from broker.summary import RunSummary
from broker.tiers import open_tiers
from broker.turned_away import TurnedAway
from broker.workers.access import worker_address
from broker.workers.jobs import Start
from broker.workers.pool import Workers, check_count
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import MANIFEST, Bundle
from edge_fl.core.errors import BrokerError, BundleError, ConfigError, StateError, SubscriptionRefusedError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import prefix_counts
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.methods.base import DropoutMethod, Method
from edge_fl.methods.capabilities import (
    ChecksBundle,
    CollectsStatistics,
    MasksLabels,
    TrainsWidths,
    evaluated_width,
)
from edge_fl.recipes.own import use_code
from edge_fl.recipes.recipe import Recipe, open_recipe
from edge_fl.runs.config import RunConfig, begun
from edge_fl.runtimes.base import check_programs
from edge_fl.training.batch_statistics import collectable
from edge_fl.training.evaluator import Evaluator, open_evaluator
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Transport
from edge_fl.transport.probe import round_trip
from edge_fl.wire.messages import Topics

__all__ = ["check_recipe", "digest_of", "new_run_id", "open_bundle", "read_settings", "resume", "serve"]

_log = logging.getLogger(__name__)
_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def new_run_id() -> str:
    """A name for a run that sorts by time and that no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def serve(
    *,
    bundle: Bundle,
    config: RunConfig,
    root: Path,
    address: BrokerAddress | Callable[[], OpenBroker],
    observer: Observer,
    fleet: str = "edge-fl",
    connect_timeout: float = 15.0,
    database: str | None = None,
    models: str | None = None,
    workers: int = 0,
) -> RunSummary:
    """Run ``config`` on ``bundle`` over the broker at ``address``; the folder ``root`` gets the results.

    ``database`` is the URL of the run's record (None: SQLite in ``root``), ``models`` where the models after the last
    rounds are kept (None: in ``root``). An ``address`` that is a function is called once all else is found to be right.
    So many ``workers`` take in updates; 0 has this process do so.

    Raises
    ------
    ConfigError
        When the method, its parameters, the initial weights or the batch do not fit the bundle, or models cannot be
        kept there.
    BrokerError
        When no broker answers.
    RunError
        When too few devices come or answer.
    StateError
        When the run's folder or record cannot be written, or holds a run.
    """
    check_count(workers)
    use_code(config.code)
    recipe, config = open_recipe(config.method, config.parameters), settled(config)
    check_recipe(bundle, recipe, config)
    if config.buffer:
        check_buffered(recipe)
    check_no_run(root)
    models = _absolute(models)
    config = begun(config, recipe.parameters, bundle=str(bundle.root.resolve()))
    evaluator = open_evaluator(bundle, config)
    start = open_initial_weights(bundle, config)
    with (
        _connected(config.run, Topics(fleet), address, connect_timeout) as line,
        _workers(workers, bundle, config, line, fleet=fleet, timeout=connect_timeout) as pool,
    ):
        settings = RunSettings(
            bundle=str(bundle.root.resolve()),
            manifest=digest_of(bundle),
            config=config,
            models=models,
            initial=keep_initial_weights(root, config, start),
        )
        with closing(Store(database or local_url(root), config.run, msgspec.json.encode(settings))) as store:
            folder = RunFolder(root, config, models=models)
            write_atomically(root / SETTINGS, msgspec.json.encode(settings))
            return _coordinate(
                bundle=bundle,
                start=start,
                config=config,
                folder=folder,
                store=store,
                evaluator=evaluator,
                line=line,
                topics=Topics(fleet),
                observer=observer,
                workers=pool,
            )


def resume(
    root: Path,
    *,
    bundle: Path | None = None,
    address: BrokerAddress | Callable[[], OpenBroker],
    observer: Observer,
    fleet: str = "edge-fl",
    connect_timeout: float = 15.0,
    database: str | None = None,
    models: str | None = None,
    workers: int = 0,
) -> RunSummary:
    """Go on with the run in ``root`` where it was broken off, in the middle of a round if need be.

    Updates that were taken count, devices that still train or upload go on, and what was asked stands. ``bundle`` is
    where the run's bundle is now, ``models`` where its models are (None: where they were). Of a round's downlink only
    what is sent from now on is counted. There may be more or fewer ``workers`` than before.

    Raises
    ------
    StateError
        When ``root`` holds no run, or one that cannot be continued.
    BundleError
        When the bundle is not the run's, or cannot be had.
    BrokerError, RunError
        As :func:`serve`.
    """
    check_count(workers)
    with closing(reopen(root) if database is None else Store(database, run_of(root))) as store:
        settings = read_settings(store.settings, RunSettings, root)
        found, config = open_bundle(settings, root, bundle), settings.config
        use_code(config.code)
        evaluator = open_evaluator(found, config)
        # After a round its checkpoint says where the run stands.
        start = found.weights() if store.rounds() else kept_initial_weights(root, found, settings)
        with (
            _connected(config.run, Topics(fleet), address, connect_timeout) as line,
            _workers(workers, found, config, line, fleet=fleet, timeout=connect_timeout) as pool,
        ):
            folder = RunFolder(root, config, finished=store.rounds(), models=_absolute(models) or settings.models)
            return _coordinate(
                bundle=found,
                start=start,
                config=config,
                folder=folder,
                store=store,
                evaluator=evaluator,
                line=line,
                topics=Topics(fleet),
                observer=observer,
                workers=pool,
            )


def open_bundle(settings: RunSettings, root: Path, bundle: Path | None) -> Bundle:
    """The bundle of the run in ``root``, at ``bundle`` or where it was; BundleError when it is another."""
    found = Bundle.load(bundle or Path(settings.bundle))
    if digest_of(found) != settings.manifest:
        raise BundleError(f"The run in '{root}' trains another bundle than the one at '{found.root}'.")
    return found


def digest_of(bundle: Bundle) -> str:
    """The SHA-256 of a bundle's manifest, and so of all that is in it."""
    return hashlib.sha256(bundle.read(MANIFEST)).hexdigest()


def read_settings(content: bytes, kind: type[_Settings], root: Path) -> _Settings:
    """Settings that a run was begun with; StateError when they are of another kind of run, or version."""
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        raise StateError(
            f"The run in '{root}' was begun by another command, or by another version of this one ({error})."
        ) from error


def _absolute(place: str | None) -> str | None:
    """A folder wherever the run is continued from; a URL as it is."""
    return place if place is None or "://" in place else str(Path(place).resolve())


class _Line(NamedTuple):
    """How the coordinator reaches devices, and hears of those that do not come in."""

    connection: Transport
    envelope: Envelope
    turned_away: TurnedAway
    signed: bool
    address: BrokerAddress


@contextmanager
def _connected(
    run: str, topics: Topics, address: BrokerAddress | Callable[[], OpenBroker], timeout: float
) -> Iterator[_Line]:
    opened = address() if callable(address) else OpenBroker.at(address)
    found = opened.address
    envelope = open_envelope(found.access.signing)
    # Where the coordinator may not read its own messages, nothing is known, and a small one does not return either.
    round_trip(found, client=f"probe-{run}", topic=topics.doctor("coordinator"), timeout=timeout)
    if found.access.identity not in (None, OF_THE_HOUSE):
        claim(found, topic=topics.all, timeout=timeout)
    connection = Connection(
        address=found,
        client_id=f"coordinator-{run}",
        subscriptions=Gateway.subscriptions(topics),
        optional=[BROKER_LOG],
    )
    try:
        connection.open(timeout=timeout)
    except SubscriptionRefusedError as error:
        raise BrokerError(
            f"The broker at {found} lets this coordinator hear no device: it is another coordinator's own, or its "
            "access list lacks this one."
        ) from error
    try:
        yield _Line(connection, envelope, opened.turned_away, found.access.signing is not None, found)
    finally:
        connection.close()


@contextmanager
def _workers(
    count: int, bundle: Bundle, config: RunConfig, line: _Line, *, fleet: str, timeout: float
) -> Iterator[Workers | None]:
    """So many workers, until the run ends; None where the coordinator takes updates in itself.

    Raises
    ------
    ConfigError
        When there are to be too many, or one lacks its identity.
    RunError, BrokerError
        When one does not start, or the broker lets it hear nothing.
    """
    if not count:
        yield None
        return
    starts = [
        Start(
            number=number,
            run=config.run,
            bundle=bundle.root.resolve(),
            method=config.method,
            parameters=config.parameters,
            code=config.code,
            address=worker_address(line.address, number),
            fleet=fleet,
            timeout=timeout,
            holds=config.exact_sums and config.privacy is None,
        )
        for number in range(1, count + 1)
    ]
    with closing(Workers(starts, line.connection.post)) as workers:
        workers.check_hearing(line.connection.publish, Topics(fleet))
        _log.info("%d workers take in updates", count)
        yield workers


def _coordinate(
    *,
    bundle: Bundle,
    start: dict[str, NDArray[np.float32]],
    config: RunConfig,
    folder: RunFolder,
    store: Store,
    evaluator: Evaluator,
    line: _Line,
    topics: Topics,
    observer: Observer,
    workers: Workers | None,
) -> RunSummary:
    recipe = open_recipe(config.method, config.parameters)
    privacy = None if config.privacy is None else Mechanism(config, bundle.layout, Lots())
    model = GlobalModel(
        bundle.layout,
        start,
        recipe=recipe,
        run=config.run,
        defence=Defence.of(config, folder.root),
        privacy=privacy,
    )
    dense = len(model.frame())
    if finished := len(store.rounds()):
        _go_on(model, finished, folder, store)
    tiers = open_tiers(config, bundle.layout)
    gateway = Gateway(
        bundle=bundle,
        recipe=recipe,
        batch=config.batch,
        most_devices=config.max_devices,
        tiers=tiers,
        folder=folder,
        store=store,
        connection=line.connection,
        topics=topics,
        observer=observer,
        envelope=line.envelope,
        turned_away=line.turned_away,
        workers=workers,
    )
    plan = plan_of(config, recipe, bundle.layout)
    secure = None
    if plan is not None:
        if not line.signed:
            _log.warning(
                "secure aggregation without identities: the broker's operator can pose as devices and read updates"
            )
        secure = SecureAggregator(
            config=config,
            fleet=gateway,
            plan=plan,
            record=folder.aggregation,
            check=line.envelope.check,
            reject=gateway.reject,
        )
    coordinator = Coordinator(
        config=config,
        manifest=bundle.manifest,
        recipe=recipe,
        model=model,
        dense=dense,
        fleet=gateway,
        folder=folder,
        store=store,
        tiers=tiers,
        evaluator=evaluator,
        observer=observer,
        secure=secure,
        workers=workers,
    )
    return coordinator.run()


def _go_on(model: GlobalModel, finished: int, folder: RunFolder, store: Store) -> None:
    """Have the model after the last finished round, or an earlier one where that is damaged.

    Rounds and versions only grow, as devices refuse what lies behind them: the earlier model is of the new version.
    """
    number, weights, learned = folder.checkpoints.newest(finished)
    if number == finished:
        model.load_state_dict(finished, weights, learned)
        return
    lost = f"round {finished}" if finished == number + 1 else f"rounds {number + 1} to {finished}"
    _log.error("the run goes on from the model of round %d: what %s taught the model is lost", number, lost)
    store.forget_unanswered()
    model.load_older(finished, weights, learned)


def check_recipe(
    bundle: Bundle, recipe: Recipe, config: RunConfig, *, tiers: int | None = None, runtime: str | None = None
) -> None:
    """Refuse before any device is asked what no device of a tier could do: ConfigError.

    ``tiers`` is how many tiers there are, None where it is not known: then it is as many as the method tells apart.
    ``runtime`` is the one that all train in, None where it may be any of the bundle's.
    """
    method, _ = recipe.method, recipe.rule
    if runtime is not None:
        check_programs(runtime, bundle)
    programs = [name for name in bundle.manifest.programs if runtime in (None, name)]
    present = range(method.tiers if tiers is None else min(tiers, method.tiers))
    check_products(config, recipe)
    check_secure(config, recipe, bundle.manifest)
    check_private(config, recipe, bundle.manifest)
    if isinstance(method, ChecksBundle) and (reason := method.unfit(bundle.manifest)):
        raise ConfigError(reason)
    collected = collects(config, method, bundle.manifest)
    if config.keep_best is not None and collected:
        raise ConfigError(
            f"'{method.name}' collects BatchNorm's statistics after the last round, and earlier models lack them: "
            "leave --keep-best out, or give --no-collect-statistics."
        )
    if isinstance(method, MasksLabels) and method.masks_labels and bundle.manifest.loss == "cross_entropy":
        _log.warning(
            "'%s' would leave out the classes that a client has no samples of, which this bundle's loss cannot; "
            "export it with --loss masked_cross_entropy",
            method.name,
        )
    if collected:
        for tier in present:
            _check_collecting(bundle, method, tier, config.batch, programs)
    elif config.collect_statistics:
        raise ConfigError(
            "The bundle's steps bring no BatchNorm statistics up to date: leave --collect-statistics out, or export it "
            "with --batch-norm tracked."
        )
    _warn_of_shift(bundle, method, collected=collected)
    wanted = isinstance(method, CollectsStatistics) and method.collects_statistics and bundle.layout.statistics
    if wanted and not collectable(bundle.manifest):
        _log.warning(
            "'%s' collects no BatchNorm statistics of this bundle, whose steps leave them as they were exported; "
            "export it with --batch-norm per-width",
            method.name,
        )
    _check_statistics_every(bundle.layout, config)
    if isinstance(method, DropoutMethod) and _drops_nothing(method, bundle.layout):
        _log.warning(
            "'%s' drops no unit of this model at its rates: it leaves recurrent blocks whole, or blocks are too small",
            method.name,
        )
    beyond = range(method.tiers if tiers is None else tiers, method.tiers)
    if any(method.counts(bundle.layout, tier) != method.counts(bundle.layout, 0) for tier in beyond):
        _log.warning(
            "'%s' tells %d tiers apart, and there are clients of %d: for all of them give --tiers %d",
            *(method.name, method.tiers, tiers, method.tiers),
        )
    for tier in present:
        _check_tier(bundle, method, tier, config.batch, programs)


def _check_collecting(bundle: Bundle, method: Method, tier: int, batch: int, programs: Sequence[str]) -> None:
    """Refuse where no device of a tier could collect statistics: ConfigError."""
    width = evaluated_width(method, tier)
    counts = prefix_counts(bundle.layout, width)
    if not any(bundle.manifest.step_program(name, "plain", counts, batch) for name in programs):
        raise ConfigError(
            f"Devices collect statistics with the train step 'plain' of width {width / 1000:g}, which the bundle "
            f"lacks: export it with {width / 1000:g} among its --widths, or give --no-collect-statistics."
        )


def _warn_of_shift(bundle: Bundle, method: Method, *, collected: bool) -> None:
    """Units that are left out, and activations that are scaled, shift running means and variances (Li et al., 2019)."""
    if not isinstance(method, DropoutMethod) or not collectable(bundle.manifest):
        return
    if not any(map(method.dropout, range(method.tiers))) or _drops_nothing(method, bundle.layout):
        return
    _log.warning(
        "'%s' shifts BatchNorm's statistics by dropping units: %s",
        method.name,
        "scores are too low until devices collect those of the full model, after the last round"
        if collected
        else "the full model's scores are too low; --collect-statistics has devices collect its own at the end",
    )


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


def _drops_nothing(method: DropoutMethod, layout: Layout) -> bool:
    """Although it was asked to."""
    tiers = range(method.tiers)
    return any(map(method.dropout, tiers)) and all(method.counts(layout, tier) == layout.sizes for tier in tiers)


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
