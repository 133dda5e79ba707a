"""MNIST: 60,000 + 10,000 handwritten digits (LeCun, Cortes, Burges)."""

from pathlib import Path

from edge_fl.data.idx_dataset import load_idx_dataset
from edge_fl.data.registry import Dataset, DatasetInfo

__all__ = ["INFO", "load"]

INFO = DatasetInfo("mnist", input_shape=(1, 28, 28), classes=10)

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
_SHA256 = {
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
}


def load(folder: Path | None) -> Dataset:
    """Load the data set from ``folder``, else by download; raises DataError when it cannot be had."""
    return load_idx_dataset(INFO, _URL, _SHA256, folder)
