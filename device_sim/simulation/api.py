"""``edge_fl.simulate``: a run in this process; `edge-fl simulate` calls the same."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from broker.observer import Observer
from broker.run_folder import new_run_id
from device_sim.simulation.settings import Population, RayCluster, TrainerSettings, World
from device_sim.simulation.simulate import Simulation
from edge_fl.compressors.base import COMPRESSORS
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from edge_fl.core.option_lists import names_given
from edge_fl.data.given import samples_of
from edge_fl.data.partition import Kind
from edge_fl.methods.base import METHODS
from edge_fl.recipes.named import NamedRecipe, recipe_and_parameters
from edge_fl.recipes.own import plain_robust
from edge_fl.runs.config import RunConfig, SecureAggregation, SelectionPolicy, bounds_beside
from edge_fl.runs.privacy import Privacy
from edge_fl.runs.run import Run, place_of

__all__ = ["begin", "simulate"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def begin(
    bundle: Bundle | str | Path,
    data: Any = None,
    *,
    test_data: Any = None,
    method: str | NamedRecipe = "fedavg",
    parameters: Mapping[str, Any] | None = None,
    scores: Sequence[str] = (),
    clients: int = 100,
    fraction: float | None = None,
    tiers: int = 1,
    partition: str = "iid",
    trainer: str = "runtime",
    runtime: str | None = None,
    device: str = "cpu",
    threads: int = 1,
    processes: int | None = None,
    engine: Literal["processes", "ray"] = "processes",
    ray_address: str | None = None,
    insecure: bool = False,
    rounds: int = 20,
    local_steps: int = 20,
    batch: int = 20,
    lr: float = 0.1,
    lr_drops: Sequence[float] = (),
    lr_warmup: int = 0,
    statistics_every: int = 1,
    collect_statistics: bool | None = None,
    seed: int = 0,
    evaluate_every: int = 1,
    initial_weights: Run | str | Path | None = None,
    keep_best: str | None = None,
    patience: int = 0,
    max_samples: int | None = None,
    samples_bound: float | None = 10.0,
    norm_bound: float | None = 2.0,
    robust: str | None = None,
    attackers: float = 0.25,
    exact_sums: bool = False,
    secure: SecureAggregation | None = None,
    privacy: Privacy | None = None,
    world: World | None = None,
    test_share: float = 0.0,
    evaluate_on: int = 0,
    buffer: int = 0,
    tier_choice: Literal["registered", "auto"] = "registered",
    selection: SelectionPolicy = "random",
    deadline: float = 120.0,
    quorum: float = 0.5,
    output: str | Path | None = None,
    run: str | None = None,
    observer: Observer | None = None,
) -> Simulation:
    """A simulation, ready to run; :func:`edge_fl.simulate` takes the same and runs it.

    Parameters
    ----------
    bundle
        What is trained, or its folder.
    data
        What is cut over the clients, as :func:`edge_fl.data.given.samples_of` takes it; None for the bundle's data set.
    test_data
        Held-out data, likewise; None for the bundle's data set, if it has one.
    method
        A name such as ``fedbiad+dgc``, ``mine.py:Mine``, or ``edge_fl.FedBIAD(dropout=0.5)``.
    parameters
        Further ones of the method's, as ``--set`` takes them.
    scores
        Metrics by name; none for the bundle's, or what is usual for its loss.
    clients, fraction
        How many there are, and the share of them picked a round; None for a tenth, but at least one.
    tiers, partition
        Into how many tiers clients are dealt, in turn, and how ``data`` is cut over them: ``iid``, ``labels=5``,
        ``shards=2``, ``dirichlet=0.5``, ``sizes=1`` or ``owners``.
    trainer, runtime, device, threads
        How clients train: each in a ``runtime`` of the bundle's (None: onnx), or many at once (``stacked``) by torch on
        a ``device``, ``cpu`` or ``cuda``; and the threads of each process.
    rounds, local_steps, batch, seed, evaluate_every
        How many rounds there are, and steps of a client's in each; samples in a step; the key of all draws; and every
        how many rounds the model is scored.
    lr, lr_drops, lr_warmup
        The step size, after which fractions of the rounds it is a tenth of what it was, and over how many rounds it
        rises at first.
    statistics_every, collect_statistics
        In every how many rounds updates hold BatchNorm's statistics, and whether clients collect those of the final
        model; None: as the method needs.
    processes, engine
        How many workers share a round's clients, and what they are: processes of this machine (None: one), or actors of
        a Ray cluster (None: as many as fit).
    ray_address, insecure
        ``HOST:PORT`` of a cluster, None to start one here; and whether one off this machine needs no token.
    initial_weights
        A run that has ended, its folder, or a ``.safetensors`` file; None for the weights in the bundle.
    keep_best, patience
        The score, or ``loss``, by whose best round the weights are chosen, and how many worse evaluations end the run.
    max_samples
        What a client that trains on more samples counts for; None for its own.
    samples_bound, norm_bound
        How many times the median's samples a client may count for, and how many times the median update's size its
        update may have (one twice as large as that is left out); None for no bound.
    robust, attackers
        The rule that withstands a share of hostile clients, by name or ``file.py:OBJECT``; None for the method's alone.
    exact_sums
        Sum updates as whole numbers: the same bits in any order.
    secure
        Sum updates as devices do that keep them to themselves (``edge_fl.SecureAggregation()``): to the same numbers,
        without masks. ``norm_bound``, which looks at single updates, is off then.
    privacy
        Differential privacy: ``edge_fl.Privacy("central", epsilon=8)``. The bounds above are off then, since the clip
        takes their place.
    world
        How long clients take and when they are there, as :class:`device_sim.simulation.settings.World` says; None for a
        simulation in which no time passes. It takes one to fill a ``buffer``, to choose tiers by time (``auto``), and
        for a ``deadline`` to mean anything.
    test_share, evaluate_on
        Share of each client's samples that is held out, and how many clients evaluate the model on those.
    buffer, tier_choice, selection, deadline, quorum
        As :class:`edge_fl.runs.config.RunConfig` has ``buffer``, ``tiers``, ``selection``, ``deadline`` and ``quorum``.
    output, run
        The run folder, None for ``runs/ID``, and the run's id, None for a new one.
    observer
        Hears what happens, as :class:`broker.observer.Observer` has it; None for nobody.

    Raises
    ------
    EdgeFLError
        As :class:`device_sim.simulation.simulate.Simulation`.
    """
    run = run or new_run_id()
    _check_kinds(parameters, lr_drops, world)
    if evaluate_on and not test_share:
        raise ConfigError(
            "Clients evaluate on samples held out of their training: give --test-share beside --evaluate-on."
        )
    found = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
    population = Population(clients, tiers, Kind.parse(partition), test_share=test_share)
    name, given, code = recipe_and_parameters(method, parameters or {})
    robust_rule, of_rule = plain_robust(robust)
    config = RunConfig(
        run=run,
        method=name,
        parameters=given,
        rounds=rounds,
        clients_per_round=max(1, clients // 10) if fraction is None else population.share(fraction),
        local_steps=local_steps,
        batch=batch,
        lr=lr,
        lr_drops=tuple(lr_drops),
        lr_warmup=lr_warmup,
        statistics_every=statistics_every,
        collect_statistics=collect_statistics,
        seed=seed,
        evaluate_every=evaluate_every,
        initial_weights=place_of(initial_weights),
        keep_best=keep_best,
        patience=patience,
        max_samples=max_samples,
        **bounds_beside(privacy, secure, samples_bound=samples_bound, norm_bound=norm_bound),
        exact_sums=exact_sums,
        secure=secure,
        privacy=privacy,
        robust=robust_rule,
        attackers=attackers,
        evaluate_on=evaluate_on,
        buffer=buffer,
        tiers=tier_choice,
        selection=selection,
        deadline=deadline,
        quorum=quorum,
        test_data=_spec(test_data),
        scores=names_given("scores", scores),
        code=(*code, *of_rule),
    )
    return Simulation(
        bundle=found,
        config=config,
        population=population,
        trainer=TrainerSettings(
            trainer,
            runtime and runtime.replace("-", "_"),
            device,
            threads,
            processes=1 if engine == "ray" or processes is None else processes,
            ray=_cluster(engine, ray_address, processes, insecure=insecure),
        ),
        root=Path("runs") / run if output is None else Path(output),
        observer=observer or Observer(),
        data=_spec(data) if data is None or _spec(data) else samples_of(data),
        world=world,
        test=None if test_data is None or _spec(test_data) else samples_of(test_data, "the test data"),
    )


def _takes(other: Callable[_P, object]) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Have ``help`` and type checkers show what ``other`` takes, which a function passes on as ``**options``."""

    def shown(function: Callable[..., _R]) -> Callable[_P, _R]:
        own = inspect.signature(function).return_annotation
        function.__signature__ = inspect.signature(other).replace(return_annotation=own)  # type: ignore[attr-defined]
        parameters = inspect.cleandoc(other.__doc__ or "").partition("\n\n")[2]
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{parameters}"
        return function

    return shown


@_takes(begin)
def simulate(bundle: Bundle | str | Path, data: Any = None, **options: Any) -> Run:
    """Simulate a run with the frames, checks and rules of a real one, until its last round.

    It takes what :func:`device_sim.simulation.api.begin` takes, which makes the run ready and does not run it.

    Example: ``edge_fl.simulate(bundle, (x, y), method=edge_fl.FedBIAD(dropout=0.5), clients=100, rounds=20)``
    """
    known = inspect.signature(begin).parameters
    if unknown := next((name for name in options if name not in known), None):
        raise TypeError(f"simulate() has no option '{unknown}'{_hint(unknown, known)}")
    simulation = begin(bundle, data, **options)
    return Run.open(simulation.run().weights.parent)


def _hint(unknown: str, known: Iterable[str]) -> str:
    """What is meant, where that can be guessed: a parameter of a method, an object's field, a near name."""
    methods = [METHODS.find(name).Parameters for name in METHODS.names()]
    parts = [*methods, *(COMPRESSORS.find(name).Parameters for name in COMPRESSORS.names())]
    if any(unknown in part.__struct_fields__ for part in parts):
        return f"; it belongs to the method: parameters={{'{unknown}': ...}}"
    for name, kind in (("world", World), ("secure", SecureAggregation), ("privacy", Privacy)):
        if unknown in kind.__struct_fields__:
            return f"; it belongs to edge_fl.{kind.__name__}, which '{name}' takes"
    named = {"secure_aggregation": "secure", "dp": "privacy"}.get(unknown)
    near = [named] if named else difflib.get_close_matches(unknown, known, n=1, cutoff=0.75)
    return f"; did you mean '{near[0]}'?" if near else ""


def _check_kinds(parameters: object, lr_drops: object, world: object) -> None:
    for option, given, kinds, example in (
        ("parameters", parameters, (Mapping, type(None)), "{'dropout': 0.5}"),
        ("lr_drops", lr_drops, (Sequence,), "[0.5, 0.75]"),
        ("world", world, (World, type(None)), "edge_fl.World(link='wifi')"),
    ):
        if not isinstance(given, kinds):
            raise ConfigError(f"'{option}' takes, for instance, {example}, not {given!r}.")


def _spec(given: Any) -> str | None:
    """What the record keeps of data: a spec's text, None of objects."""
    return str(given) if isinstance(given, str | Path) else None


def _cluster(engine: str, address: str | None, workers: int | None, *, insecure: bool) -> RayCluster | None:
    if engine == "ray":
        return RayCluster(address, workers, insecure)
    if engine != "processes":
        raise ConfigError(f"There is no engine '{engine}'; there are processes and ray.")
    if address is not None or insecure:
        raise ConfigError("Only --engine ray has an address: give it, or leave --ray-address and --insecure out.")
    return None
