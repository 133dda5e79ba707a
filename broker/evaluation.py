"""The global model on held-out data."""

from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import RuntimeMissingError
from edge_fl.core.selection import Weights
from edge_fl.core.width_statistics import trained_width
from edge_fl.data.registry import Dataset
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.training.evaluation import Score, score

__all__ = ["Evaluator"]

_PREFERRED = ("onnx", "torch_eager", "executorch", "executorch_training", "ort_training")


class Evaluator:
    """Runs a bundle's evaluation program over a test split, in the first runtime that is installed.

    Parameters
    ----------
    bundle
        The model's.
    dataset
        Its test split is the held-out data.
    threads
        CPU threads, in some runtimes the whole process's: where it trains too, those of training.

    Attributes
    ----------
    top
        Among how many largest outputs a target must be.
    """

    def __init__(self, bundle: Bundle, dataset: Dataset, *, threads: int = 2) -> None:
        self._runtime = _open(bundle, threads)
        self._runtime.evaluator()  # one that is missing is told before anything is trained
        self._samples, self.top = dataset.test, dataset.info.top
        self._layout, self._widths = bundle.layout, bundle.manifest.statistic_widths
        start = bundle.weights()
        self._start = {tensor.name: start[tensor.name] for tensor in self._layout.tensors if tensor.per_width}

    def score(self, weights: Weights, width: int = 1000) -> Score:
        """Evaluate ``weights`` (full tensors); every sample counts alike, and in a sample every position.

        ``width`` (thousandths) leaves the model the first units of each block, with the statistics trained nearest to
        that width where BatchNorm has them for each: the model that ``extract --width`` delivers. Raises RunError when
        the loss is not finite.
        """
        statistics = self.statistics(weights, width)
        return score(self._runtime, weights, self._samples, width=width, statistics=statistics, top=self.top)

    def statistics(self, weights: Weights, width: int) -> int:
        """The width (thousandths) whose BatchNorm statistics in ``weights`` suit the first units of ``width`` best."""
        return trained_width(self._layout, self._start, weights, self._widths, width)


def _open(bundle: Bundle, threads: int) -> Runtime:
    reasons = []
    for name in _PREFERRED:
        try:
            return open_runtime(name, bundle, threads=threads)
        except RuntimeMissingError as error:
            reasons.append(str(error))
    raise RuntimeMissingError("The coordinator cannot evaluate this bundle: " + " ".join(reasons))
