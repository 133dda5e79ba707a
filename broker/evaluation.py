"""The global model on held-out data."""

from dataclasses import dataclass

from edge_fl.bundle import Bundle
from edge_fl.data.batcher import eval_batches
from edge_fl.data.registry import Samples
from edge_fl.errors import RuntimeMissingError
from edge_fl.runtimes.base import Runtime, open_runtime
from edge_fl.selection import Weights

__all__ = ["Evaluator", "Score"]

_BATCH = 200  # larger ones fall out of cache
_PREFERRED = ("onnx", "torch_eager", "executorch")


@dataclass(frozen=True)
class Score:
    """Mean loss and top-1 accuracy (a fraction)."""

    loss: float
    accuracy: float


class Evaluator:
    """Runs a bundle's evaluation program over a test split, in the first runtime that is installed.

    Parameters
    ----------
    bundle
        The model's.
    samples
        The held-out data.
    """

    def __init__(self, bundle: Bundle, samples: Samples) -> None:
        self._run, self._samples = _open(bundle).evaluator(), samples

    def score(self, weights: Weights) -> Score:
        """Evaluate ``weights`` (full tensors)."""
        loss = correct = 0.0
        for batch in eval_batches(self._samples, size=_BATCH):
            batch_loss, outputs = self._run(weights, batch)
            loss += batch_loss * float(batch.weight.sum())
            correct += float(((outputs.argmax(axis=1) == batch.y) * batch.weight).sum())
        count = len(self._samples.y)
        return Score(loss / count, correct / count)


def _open(bundle: Bundle) -> Runtime:
    reasons = []
    for name in _PREFERRED:
        try:
            return open_runtime(name, bundle, threads=2)
        except RuntimeMissingError as error:
            reasons.append(str(error))
    raise RuntimeMissingError("The coordinator cannot evaluate this bundle: " + " ".join(reasons))
