"""``edge_fl.serve``: a coordinator in this process; `edge-fl serve` calls the same."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from broker.observer import Observer
from broker.open_broker import OpenBroker, open_broker
from broker.run_folder import new_run_id
from broker.session import serve as coordinate
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.option_lists import names_given
from edge_fl.recipes.named import NamedRecipe, recipe_and_parameters
from edge_fl.recipes.own import plain_robust
from edge_fl.runs.config import RunConfig, SecureAggregation, bounds_beside
from edge_fl.runs.privacy import Privacy
from edge_fl.runs.run import Run, place_of
from edge_fl.transport.access import Access

__all__ = ["serve"]


def serve(
    bundle: Bundle | str | Path,
    *,
    test_data: str | Path | None = None,
    method: str | NamedRecipe = "fedavg",
    parameters: Mapping[str, Any] | None = None,
    scores: Sequence[str] = (),
    broker: str = "embedded",
    access: Access | None = None,
    host: str | None = None,
    port: int | None = None,
    passwords: str | Path | None = None,
    fleet: str = "edge-fl",
    rounds: int = 20,
    clients_per_round: int = 10,
    local_steps: int = 20,
    batch: int = 20,
    lr: float = 0.1,
    seed: int = 0,
    initial_weights: Run | str | Path | None = None,
    samples_bound: float | None = 10.0,
    norm_bound: float | None = 2.0,
    robust: str | None = None,
    rollback: float | None = 3.0,
    secure: SecureAggregation | None = None,
    privacy: Privacy | None = None,
    output: str | Path | None = None,
    observer: Observer | None = None,
    workers: int = 0,
    **settings: Any,
) -> Run:
    """Coordinate a run over MQTT until its last round, and open its folder.

    Parameters
    ----------
    bundle
        What is trained, or its folder.
    test_data
        Held-out data as ``edge-fl serve --test-data`` has it; None for the bundle's data set, if it has one.
    method
        A name such as ``fedbiad+dgc``, or ``edge_fl.FedBIAD(dropout=0.5)``.
    broker
        ``embedded``, or ``mqtts://host:port`` of one that runs, as :func:`broker.open_broker.open_broker` has it with
        ``access``, ``host``, ``port`` and ``passwords``.
    initial_weights, samples_bound, norm_bound, robust
        As :func:`edge_fl.simulate` has them.
    rollback
        A round whose model has a held-out loss of more than so many times the median of the last evaluations is done
        again without the updates that ruined it; None never is.
    secure
        Learn sums of updates alone, as ``edge_fl.SecureAggregation()`` says. ``norm_bound`` and ``rollback``, which
        look at single updates, are off then.
    privacy
        Differential privacy: ``edge_fl.Privacy("central", epsilon=8, devices=1000)``. The bounds and ``rollback`` are
        off then, since the clip takes their place.
    workers
        Processes that take in, check and add up updates, each with an MQTT session of its own; 0 has this one do so.
    settings
        Further fields of :class:`edge_fl.runs.config.RunConfig`, such as ``deadline`` or ``quorum``.

    Raises
    ------
    EdgeFLError
        As :func:`broker.session.serve`, and PortError where the embedded broker cannot listen.
    """
    run = new_run_id()
    found = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
    name, given, code = recipe_and_parameters(method, parameters or {})
    robust_rule, of_rule = plain_robust(robust)
    config = RunConfig(
        run=run,
        method=name,
        parameters=given,
        rounds=rounds,
        clients_per_round=clients_per_round,
        local_steps=local_steps,
        batch=batch,
        lr=lr,
        seed=seed,
        test_data=None if test_data is None else _spec(test_data),
        scores=names_given("scores", scores),
        initial_weights=place_of(initial_weights),
        code=(*code, *of_rule),
        robust=robust_rule,
        **bounds_beside(privacy, secure, samples_bound=samples_bound, norm_bound=norm_bound, rollback=rollback),
        secure=secure,
        privacy=privacy,
        **settings,
    )
    root = Path("runs") / run if output is None else Path(output)
    with ExitStack() as stack:

        def address() -> OpenBroker:  # once all else is checked
            users = None if passwords is None else Path(passwords)
            return open_broker(broker, stack, access=access, host=host, port=port, passwords=users, fleet=fleet)

        coordinate(
            bundle=found,
            config=config,
            root=root,
            address=address,
            observer=observer or Observer(),
            fleet=fleet,
            workers=workers,
        )
    return Run.open(root)


def _spec(data: str | Path) -> str:
    """Held-out data as a run's record has them, which goes on from them."""
    if not isinstance(data, str | Path):
        raise ConfigError(
            f"A coordinator reads test data from a file, as in test_data='npz:test.npz', not from an object of type "
            f"'{type(data).__name__}': save it with numpy's savez."
        )
    return str(data)
