"""The global model on held-out data, where there is any."""

import logging
from collections.abc import Sequence

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError, RuntimeMissingError
from edge_fl.core.selection import Weights
from edge_fl.core.width_statistics import trained_width
from edge_fl.data.registry import Samples
from edge_fl.data.splits import papers_top, test_samples
from edge_fl.metrics.base import Metric, WholeSetMetric, default_scores, open_metrics
from edge_fl.runs.config import RunConfig
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.training.evaluation import Score, score
from edge_fl.training.features import with_features

__all__ = ["Evaluator", "open_evaluator"]

_log = logging.getLogger(__name__)
_ON_ACCELERATORS = "torch_eager"
_PREFERRED = ("onnx", "torch_eager", "executorch", "executorch_training", "ort_training")


class Evaluator:
    """Runs a bundle's evaluation program over a test split, in the first runtime that is installed.

    Parameters
    ----------
    bundle
        The model's.
    samples
        The held-out data; None where there is none, and models have no score here.
    metrics
        The scores wanted besides the loss.
    threads
        CPU threads, in some runtimes the whole process's: where it trains too, those of training.
    device
        ``cuda`` has torch evaluate there, where the bundle has torch's programs.

    Attributes
    ----------
    manifest
        The bundle's.
    metrics
        As given.
    """

    def __init__(
        self,
        bundle: Bundle,
        samples: Samples | None,
        metrics: tuple[Metric | WholeSetMetric, ...] = (),
        *,
        threads: int = 2,
        device: str = "cpu",
    ) -> None:
        self._runtime = None if samples is None else _open(bundle, threads, device)
        if self._runtime is not None and samples is not None:
            self._runtime.evaluator()  # one that is missing is told before anything is trained
            samples = with_features(samples, self._runtime)
        self._samples, self.manifest, self.metrics = samples, bundle.manifest, metrics
        self._layout, self._widths = bundle.layout, bundle.manifest.statistic_widths
        start = bundle.weights()
        self._start = {tensor.name: start[tensor.name] for tensor in self._layout.tensors if tensor.per_width}

    @property
    def on_devices(self) -> tuple[Metric, ...]:
        """The metrics that devices can compute: those of edge-fl's that have sums."""
        return tuple(metric for metric in self.metrics if isinstance(metric, Metric))

    def lower_is_better(self, name: str) -> bool:
        """Whether the smaller of two scores of this name, or losses, is the better."""
        return not next((metric.higher_is_better for metric in self.metrics if metric.name == name), False)

    def score(self, weights: Weights, width: int = 1000, factor: float = 1.0) -> Score | None:
        """Evaluate ``weights`` (full tensors); None without held-out data.

        ``width`` (thousandths) leaves the model the first units of each block, with the statistics trained nearest to
        that width where BatchNorm has them for each: the model that ``extract --width`` delivers. ``factor`` multiplies
        the outputs of every block's layer, as :func:`edge_fl.methods.capabilities.width_factor` says. Raises RunError
        when the loss is not finite.
        """
        if self._runtime is None or self._samples is None:
            return None
        statistics = self.statistics(weights, width)
        return score(
            self._runtime,
            weights,
            self._samples,
            self.metrics,
            width=width,
            statistics=statistics,
            factor=factor,
        )

    def statistics(self, weights: Weights, width: int) -> int:
        """The width (thousandths) whose BatchNorm statistics in ``weights`` suit the first units of ``width`` best."""
        return trained_width(self._layout, self._start, weights, self._widths, width)


def open_evaluator(
    bundle: Bundle,
    config: RunConfig,
    *,
    samples: Samples | None = None,
    threads: int = 2,
    device: str = "cpu",
) -> Evaluator:
    """What scores the models of a run.

    Parameters
    ----------
    samples
        The held-out data; None for what ``config.test_data`` names, or the bundle's own data set.
    threads, device
        As :class:`Evaluator`'s.

    Raises
    ------
    ConfigError
        When a score of ``config.scores`` is unknown, or does not fit the model, or ``config.keep_best`` is none of
        them, or there is no held-out data for it; or when held-out data are given of a model with personal tensors.
    DataError
        When the held-out data cannot be had, or do not fit the model.
    """
    manifest = bundle.manifest
    metrics = open_metrics(
        config.scores or manifest.scores or default_scores(manifest, papers_top(manifest)), manifest
    )
    held_out = _held_out(bundle, config, samples)
    if held_out is None and not config.evaluate_on:
        told = "the training loss alone" if config.privacy is None else "no score"
        give = "--evaluate-on" if bundle.layout.personal else "--test-data, or --evaluate-on"
        _log.warning("no test data: the run reports %s; give %s", told, give)
    if config.keep_best is not None and bundle.layout.personal:
        raise ConfigError("The coordinator scores no model that has personal tensors: leave --keep-best out.")
    if config.keep_best is not None:
        _check_best(config.keep_best, [metric.name for metric in metrics], held_out)
    return Evaluator(bundle, held_out, metrics, threads=threads, device=device)


def _held_out(bundle: Bundle, config: RunConfig, samples: Samples | None) -> Samples | None:
    """What the coordinator scores models on; nothing where each device has tensors that nobody else has."""
    if not bundle.layout.personal:
        return test_samples(config.test_data if samples is None else samples, bundle)
    if samples is not None or config.test_data is not None:
        raise ConfigError(
            f"'{bundle.layout.personal[0].name}' is personal, so the coordinator has no whole model to score: leave "
            "the test data out, and have devices score it (--evaluate-on)."
        )
    return None


def _check_best(name: str, known: Sequence[str], samples: Samples | None) -> None:
    if samples is None:
        raise ConfigError("The best round is told by held-out data: give --test-data, or leave --keep-best out.")
    if name not in ("loss", *known):
        raise ConfigError(f"The run has no score '{name}' to keep the best of: it has loss, {', '.join(known)}.")


def _open(bundle: Bundle, threads: int, device: str) -> Runtime:
    if device != "cpu" and _ON_ACCELERATORS in bundle.manifest.programs:
        return open_runtime(_ON_ACCELERATORS, bundle, threads=threads, device=device)
    reasons = []
    for name in _PREFERRED:
        try:
            return open_runtime(name, bundle, threads=threads)
        except RuntimeMissingError as error:
            reasons.append(str(error))
    raise RuntimeMissingError("The coordinator cannot evaluate this bundle: " + " ".join(reasons))
