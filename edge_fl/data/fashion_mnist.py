"""Fashion-MNIST: 60,000 + 10,000 pictures of clothes (Xiao, Rasul, Vollgraf 2017; MIT licence)."""

from pathlib import Path

from edge_fl.data.idx_dataset import load_idx_dataset
from edge_fl.data.registry import Dataset, DatasetInfo

__all__ = ["INFO", "load"]

INFO = DatasetInfo("fashion-mnist", input_shape=(1, 28, 28), classes=10)

_URL = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"
_SHA256 = {
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
}


def load(folder: Path | None) -> Dataset:
    """Load the data set from ``folder``, else by download; raises DataError when it cannot be had."""
    return load_idx_dataset(INFO, _URL, _SHA256, folder)
