"""What a score is, and how one is found by name.

A metric is a set of sums that add over batches and devices, and a function of them. A device sends its sums, never
its samples; the coordinator adds them and takes the function. A score that has no such sums (a function of all
outputs at once) is computed by the coordinator alone.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edge_fl.core.bundle import Manifest
from edge_fl.core.errors import ConfigError, said
from edge_fl.core.registry import Registry, load_object

__all__ = [
    "METRICS",
    "MOST_SUMS",
    "Metric",
    "Sums",
    "WholeSetMetric",
    "default_scores",
    "metric_names",
    "open_metric",
    "open_metrics",
    "sent_metrics",
]

Sums = NDArray[np.float64]
"""``[k]`` float64, k being the metric's own."""

MOST_SUMS = 4096
"""The most numbers that a device sends for one metric."""


class Metric(ABC):
    """One score.

    Attributes
    ----------
    name
        As records, tables and plots show it.
    percent
        Whether people read it as a share of 1.
    higher_is_better
        Which of two models is the better.
    """

    name: str
    percent: bool = False
    higher_is_better: bool = True

    def unfit(self, manifest: Manifest) -> str | None:
        """Why this model cannot be scored so: a sentence; None where it can."""
        del manifest
        return None

    @abstractmethod
    def size(self, manifest: Manifest) -> int:
        """How many sums there are, k."""

    @abstractmethod
    def sums(self, outputs: NDArray[np.float32], y: NDArray[Any], weight: NDArray[np.float32]) -> Sums:
        """The sums of one batch.

        Parameters
        ----------
        outputs
            ``[B, ...]``, the model's.
        y
            ``[B, ...]``, int64 classes or float32 targets.
        weight
            ``[B]``, 1 for a sample and 0 for padding.
        """

    @abstractmethod
    def value(self, sums: Sums) -> float:
        """The score that ``sums`` over all samples come to."""

    def plausible(self, sums: Sums, samples: int) -> bool:
        """Whether ``samples`` samples can have these sums; a device's are not taken on trust."""
        del samples
        return bool(np.isfinite(sums).all())


class WholeSetMetric:
    """A score that one function computes from all outputs and targets at once: the coordinator's alone.

    Parameters
    ----------
    name
        As records show it.
    function
        Takes outputs ``[n, ...]`` and targets ``[n, ...]`` and gives a number.
    """

    percent = False
    higher_is_better = True

    def __init__(self, name: str, function: Callable[[NDArray[Any], NDArray[Any]], float]) -> None:
        self.name, self._function = name, function

    def unfit(self, manifest: Manifest) -> str | None:
        """Nothing is known against it before it is called."""
        del manifest
        return None

    def of(self, outputs: NDArray[Any], y: NDArray[Any]) -> float:
        """The score; raises ConfigError where the function raises or gives no finite number."""
        try:
            found = float(self._function(outputs, y))
        except Exception as error:  # the user's code may raise anything
            raise ConfigError(f"The score '{self.name}' cannot be computed: {said(error)}.") from error
        if not math.isfinite(found):
            raise ConfigError(f"The score '{self.name}' is {found}, which is no finite number.")
        return found


METRICS: Registry[Metric] = Registry("metric", "edge_fl.metrics", "METRIC", Metric)
_OURS = frozenset({"classification", "regression", "text"})
_TOP = re.compile(r"top-([1-9][0-9]{0,3})")


def metric_names() -> list[str]:
    """The scores this version knows, ``top-3`` standing for every top-k."""
    return sorted({*_known(), "top-3", *METRICS.names()} - _OURS)


def open_metric(name: str) -> Metric | WholeSetMetric:
    """The metric ``name``: one of :func:`metric_names`, ``top-K``, or ``path/to/file.py:OBJECT`` of the user's.

    Raises
    ------
    ConfigError
        When there is none, or the user's file cannot be had.
    """
    from edge_fl.metrics.classification import TopK

    if match := _TOP.fullmatch(name):
        return TopK(int(match[1]))
    if name in _known():
        return _known()[name]()
    if ":" in name:
        return _own(name)
    if name in METRICS.names() and name not in _OURS:
        return METRICS.find(name)()
    raise ConfigError(
        f"There is no score '{name}'; there are {', '.join(metric_names())}, or write your own as "
        "path/to/file.py:function."
    )


def open_metrics(names: Sequence[str], manifest: Manifest) -> tuple[Metric | WholeSetMetric, ...]:
    """The metrics of these names, none twice; raises ConfigError also where one does not fit the model."""
    opened = tuple(open_metric(name) for name in dict.fromkeys(names))
    known: dict[str, str] = {}
    for name, metric in zip(dict.fromkeys(names), opened, strict=True):
        if reason := metric.unfit(manifest):
            raise ConfigError(reason)
        if metric.name in known:
            raise ConfigError(
                f"Two scores are called '{metric.name}': {known[metric.name]} and {name}; rename one."
            )
        known[metric.name] = name
    return opened


def sent_metrics(names: Sequence[str], manifest: Manifest) -> tuple[Metric, ...]:
    """The metrics that a task names: plain names of edge-fl's own, never a file.

    Raises
    ------
    ConfigError
        When a name is none, or the metric does not fit the model.
    """
    foreign = next((name for name in names if ":" in name or "/" in name), None)
    if foreign is not None:
        raise ConfigError(
            f"The task names the score '{foreign[:40]}', which is no plain name; no code comes with it."
        )
    return tuple(metric for metric in open_metrics(names, manifest) if isinstance(metric, Metric))


def default_scores(manifest: Manifest, top: int = 1) -> tuple[str, ...]:
    """The scores that people expect of a loss; ``top`` as the data set's papers count predictions."""
    if manifest.loss == "binary_cross_entropy":
        return ("binary-accuracy",)
    if manifest.target.dtype == "float32":
        return ("mae", "rmse")
    return ("accuracy",) if top == 1 else (f"top-{top}",)


def _known() -> Mapping[str, Callable[[], Metric]]:
    from edge_fl.metrics import classification, regression

    return {**classification.METRICS, **regression.METRICS}


def _own(spec: str) -> Metric | WholeSetMetric:
    found = load_object(spec)
    if METRICS.is_one(found):
        return METRICS.find(METRICS.use(spec))()
    if isinstance(found, Metric):
        return found
    if not callable(found):
        raise ConfigError(f"'{spec}' is no function and no Metric.")
    return WholeSetMetric(spec.rpartition(":")[2], cast("Callable[[NDArray[Any], NDArray[Any]], float]", found))
