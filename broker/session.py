"""Puts a run together from its parts: what `edge-fl serve` and the demo share."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

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
from broker.rebuilt_record import reopen
from broker.recipe_checks import check_recipe
from broker.run_folder import SETTINGS, RunFolder, check_no_run, run_of
from broker.secure_aggregation.aggregator import SecureAggregator
from broker.secure_aggregation.settings import plan_of
from broker.settings import RunSettings, open_bundle, read_settings
from broker.statistics_round import with_collection
from broker.store import Store
from broker.summary import RunSummary
from broker.tiers import open_tiers
from broker.turned_away import TurnedAway
from broker.workers.access import worker_address
from broker.workers.jobs import Start
from broker.workers.pool import Workers, check_count
from edge_fl.core.atomic import write_atomically
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BrokerError, SubscriptionRefusedError
from edge_fl.recipes.own import use_code, use_code_again
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.config import RunConfig, begun
from edge_fl.training.evaluator import Evaluator, open_evaluator
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Transport
from edge_fl.transport.probe import round_trip
from edge_fl.wire.messages import Topics

__all__ = ["resume", "serve"]

_log = logging.getLogger(__name__)


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
    config = with_collection(config, recipe.method, bundle.manifest)
    check_recipe(bundle, recipe, config)
    if config.buffer:
        check_buffered(recipe)
    check_no_run(root)
    models = _absolute(models)
    config = begun(config, recipe.parameters, bundle=str(bundle.root.resolve()), bundle_sha256=bundle.digest)
    evaluator = open_evaluator(bundle, config)
    start = open_initial_weights(bundle, config)
    with (
        _connected(config.run, Topics(fleet), address, connect_timeout) as line,
        _workers(workers, bundle, config, line, fleet=fleet, timeout=connect_timeout) as pool,
    ):
        settings = RunSettings(
            bundle=str(bundle.root.resolve()),
            manifest=bundle.digest,
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
        use_code_again(config.code, config.about.get("code_sha256", {}))
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
