"""FjORD's CNN for FEMNIST (Horvath et al., arXiv:2102.13451, appendix B.1).

Two 5 x 5 convolutions of 10 and 20 filters, each followed by 2 x 2 max pooling, and a dense output layer. The numbers
are lost from the paper's text as it is commonly converted; these are the ones that give the multiply-accumulates
of its Table 2 at every width (tests/exporter/zoo/test_fjord_table2.py).
"""

from torch import nn

from exporter.zoo.entry import Architecture, Entry

__all__ = ["ENTRIES", "femnist_cnn"]


def femnist_cnn(*, filters: tuple[int, int] = (10, 20)) -> nn.Module:
    """Build the CNN; takes ``[B, 1, 28, 28]`` float32, gives ``[B, 62]`` logits."""
    first, second = filters
    return nn.Sequential(
        nn.Conv2d(1, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 4 * 4, 62),
    )


ENTRIES = (
    Entry(
        name="femnist-cnn",
        dataset="femnist",
        build=femnist_cnn,
        input_shape=(1, 28, 28),
        classes=62,
        narrowed=Architecture(build=lambda: femnist_cnn(filters=(4, 6)), input_shape=(1, 28, 28), classes=62),
    ),
)
