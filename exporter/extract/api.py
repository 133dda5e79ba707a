"""``edge_fl.extract``: from a run to a file that predicts; `edge-fl extract` calls the same."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from edge_fl.core.bundle import Bundle, Manifest
from edge_fl.core.errors import BundleError, DataError, RunError, RuntimeMissingError, StateError
from edge_fl.core.selection import masked
from edge_fl.core.share import parse_width
from edge_fl.data.given import samples_of
from edge_fl.data.registry import Samples
from edge_fl.data.splits import test_samples
from edge_fl.methods.capabilities import NarrowsBlocks, TrainsWidths, model_width, width_factor
from edge_fl.recipes.own import use_code
from edge_fl.recipes.recipe import open_recipe
from edge_fl.runs.run import Run
from edge_fl.training.evaluator import open_evaluator
from exporter.extract.adapter import extract_adapter
from exporter.extract.card import Card
from exporter.extract.extract import Trained, Wanted, check_wanted
from exporter.extract.extract import extract as extract_model
from exporter.sentence import some_names

__all__ = ["Extracted", "extract", "extract_adapters"]

_SHOWN = 4  # names of a line
_log = logging.getLogger(__name__)


class Extracted(NamedTuple):
    """The file, and what its ``.json`` says of it."""

    path: Path
    card: Card


def extract(
    run: Run | str | Path,
    output: str | Path = "model",
    *,
    bundle: Bundle | str | Path | None = None,
    runtime: str = "onnx",
    width: float = 1.0,
    untrained_width: bool = False,
    sparse: bool = False,
    test_data: Any = None,
    class_names: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = _log.warning,
) -> Extracted:
    """Deliver a run's final model with the weights in it, proven equal to what was trained, and scored once more.

    Parameters
    ----------
    run
        What :func:`edge_fl.simulate` or :func:`edge_fl.serve` gave, or its folder.
    output
        A folder, or the file: ``.onnx``, ``.pte`` for ExecuTorch, ``.pt2`` for torch.
    bundle
        What was trained; None: where the run had it.
    runtime
        ``onnx``, ``executorch`` or ``torch``.
    width
        Kept share of each block's units in (0, 1], the first ones.
    untrained_width
        Whether the width may be one that the run's method trained no model of.
    sparse
        Whether units whose weights are all exactly zero are left out.
    test_data
        What the model is scored on, as :func:`edge_fl.data.given.samples_of` takes it; None for the run's test data.
    class_names, metadata
        In place of the bundle's names, one a class; and beside its metadata.
    warn
        Told in a sentence of what the file lacks, such as a score.

    Raises
    ------
    EdgeFLError
        As :func:`exporter.extract.extract.extract`; nothing is written then.
    """
    opened = _opened(run, bundle, width, warn)
    manifest = opened.bundle.manifest
    wanted = Wanted(
        runtime,
        opened.width,
        sparse,
        class_names=tuple(class_names) or manifest.class_names or None,
        metadata={**manifest.metadata, **(metadata or {})},
        untrained=untrained_width,
    )
    check_wanted(opened.bundle, opened.trained, wanted, Path(output))  # before the model is scored
    given = opened.run.config.test_data if test_data is None else test_data
    named = str(given) if isinstance(given, str | Path) else None
    tested = named or ("what was given" if given is not None else f"the test split of {manifest.dataset}")
    data = named if named or given is None else samples_of(given, "the test data")
    wanted = replace(wanted, scores=_scores(opened, wanted, data, warn), test_data=tested)
    delivered = Extracted(*extract_model(opened.bundle, opened.trained, wanted, Path(output)))
    if between := opened.trained.between(opened.width):
        warn(f"The method has no width {width:g} as it was set: {between} may predict better.")
    return delivered


def extract_adapters(
    run: Run | str | Path,
    output: str | Path = "model",
    *,
    bundle: Bundle | str | Path | None = None,
    width: float = 1.0,
    untrained_width: bool = False,
    sparse: bool = False,
    warn: Callable[[str], None] = _log.warning,
) -> dict[str, Any]:
    """Deliver a run's low-rank adapters alone, as a folder that PEFT loads; parameters are those of :func:`extract`.

    Returns what ``adapter_config.json`` says. Raises EdgeFLError as :func:`exporter.extract.adapter.extract_adapter`.
    """
    opened = _opened(run, bundle, width, warn)
    wanted = Wanted("onnx", opened.width, sparse, untrained=untrained_width)
    return extract_adapter(opened.bundle, opened.trained, wanted, Path(output))


@dataclass(frozen=True)
class _Opened:
    """A run, the bundle that it trained, a width in thousandths, and what the run has for a model of that width."""

    run: Run
    bundle: Bundle
    width: int
    trained: Trained


def _opened(
    run: Run | str | Path, bundle: Bundle | str | Path | None, width: float, warn: Callable[[str], None]
) -> _Opened:
    thousandths = parse_width(width)
    run = run if isinstance(run, Run) else Run.open(Path(run))
    source = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle) if bundle else _bundle_of(run))
    if run.config.about.get("bundle_sha256", source.digest) != source.digest:
        raise BundleError(
            f"The run at '{run.folder}' trained another bundle than the one at '{source.root}': give its own with "
            "--bundle, or export the same model with the same options and versions again."
        )
    if source.layout.personal:
        named = some_names([tensor.name for tensor in source.layout.personal], most=_SHOWN)
        warn(f"Each device has its own {named}: what is delivered has those of the bundle, and no score.")
    return _Opened(run, source, thousandths, _trained(run, source.manifest, thousandths))


def _bundle_of(run: Run) -> Path:
    """Where the run had its bundle; StateError where its record does not say."""
    place = run.config.about.get("bundle")
    if not isinstance(place, str):
        raise StateError(f"The run at '{run.folder}' does not say where its bundle is: give --bundle.")
    return Path(place)


def _trained(run: Run, manifest: Manifest, width: int) -> Trained:
    """What a run's folder holds, for a model of ``width``; an interrupted run's too, as far as it came."""
    config, last = run.config, run.kept
    use_code(config.code)
    method = open_recipe(config.method, config.parameters).method
    narrowed = method.narrowed(manifest.layout) if isinstance(method, NarrowsBlocks) else None
    return Trained(
        weights=run.weights,
        run=config.run,
        method=config.method,
        round=last.round if last else 0,
        scores=last.scores if last else {},
        width=model_width(method),
        ordered=narrowed is not None or (isinstance(method, TrainsWidths) and method.ordered),
        widths=method.trained_widths if isinstance(method, TrainsWidths) else (),
        narrowed=narrowed,
        factor=width_factor(method, manifest, width),
    )


def _scores(
    opened: _Opened, wanted: Wanted, data: str | Samples | None, warn: Callable[[str], None]
) -> dict[str, float]:
    """The scores of what is delivered on ``data`` as they are now; none where they are not at hand here."""
    run, bundle, trained = opened.run, opened.bundle, opened.trained
    shapes = {name: array.shape for name, array in trained.weights.items()}
    if any(shapes.get(tensor.name) != tensor.shape for tensor in bundle.layout.tensors):
        return {}  # weights of another model: what delivers them says so
    if bundle.layout.personal:  # of which each device has its own
        return {}
    try:
        samples = test_samples(data, bundle)
        if samples is None:
            if wanted.width < 1000 and any(each.scores for each in run.metrics):
                warn(
                    "not scored: the run had test data that its folder does not name; give them as test data here."
                )
            return {}
        evaluator = open_evaluator(bundle, run.config, samples=samples, threads=1)
        if trained.narrowed is None:
            found = evaluator.score(trained.weights, wanted.width, trained.factor)
        else:
            found = evaluator.score(masked(trained.weights, trained.units(bundle.layout, wanted)), 1000)
    except RunError:  # weights that diverged: likewise
        return {}
    except (DataError, RuntimeMissingError) as error:
        warn(f"not scored: {error}")
        return {}
    return {} if found is None else dict(found.scores)
