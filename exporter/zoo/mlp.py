"""The multilayer perceptrons of FedBIAD (Xue et al., arXiv:2307.07172): equal hidden layers, two or one, ReLU.

The text speaks of "a hidden layer"; the upload of 1.1 MB in its Table I, and the 530 KB at half the rows, are those
of two hidden layers of 256 on Fashion-MNIST.
"""

from itertools import pairwise

from torch import nn

from exporter.zoo.entry import Architecture, Entry

__all__ = ["ENTRIES", "digits", "fashion_mnist", "mlp", "mnist"]


def mlp(*, inputs: int, hidden: int, classes: int, layers: int = 2) -> nn.Module:
    """Build ``layers`` hidden layers of ``hidden``; takes ``[B, ...]`` float32, gives ``[B, classes]`` logits."""
    widths = [inputs, *[hidden] * layers]
    steps = [step for a, b in pairwise(widths) for step in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *steps, nn.Linear(hidden, classes))


def digits() -> nn.Module:
    """Build 64-32-32-10, the same shape at the size of the UCI digits (8 x 8 pixels), for demonstrations."""
    return mlp(inputs=64, hidden=32, classes=10)


def mnist() -> nn.Module:
    """Build 784-128-128-10, FedBIAD's MLP for MNIST as its text has it (461 KiB of weights; its table counts 531)."""
    return mlp(inputs=784, hidden=128, classes=10)


def fashion_mnist() -> nn.Module:
    """Build 784-256-256-10, FedBIAD's MLP for Fashion-MNIST."""
    return mlp(inputs=784, hidden=256, classes=10)


_SMALL = Architecture(build=lambda: mlp(inputs=64, hidden=6, classes=10), input_shape=(1, 8, 8), classes=10)

ENTRIES = (
    Entry(
        name="digits-mlp",
        dataset="digits",
        build=digits,
        input_shape=(1, 8, 8),
        classes=10,
        narrowed=_SMALL,
    ),
    Entry(
        name="mnist-mlp",
        dataset="mnist",
        build=mnist,
        input_shape=(1, 28, 28),
        classes=10,
        narrowed=_SMALL,
    ),
    Entry(
        name="fashion-mnist-mlp",
        dataset="fashion-mnist",
        build=fashion_mnist,
        input_shape=(1, 28, 28),
        classes=10,
        narrowed=_SMALL,
    ),
)
