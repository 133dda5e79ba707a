"""The multilayer perceptrons of FedBIAD (Xue et al., arXiv:2307.07172): two equal hidden layers, ReLU."""

from torch import nn

__all__ = ["MODELS", "digits", "fashion_mnist", "mlp", "mnist"]


def mlp(*, inputs: int, hidden: int, classes: int) -> nn.Module:
    """Build ``inputs - hidden - hidden - classes``; takes ``[B, ...]`` float32, gives ``[B, classes]`` logits."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def digits() -> nn.Module:
    """Build 64-32-32-10, the same shape at the size of the UCI digits (8 x 8 pixels), for demonstrations."""
    return mlp(inputs=64, hidden=32, classes=10)


def mnist() -> nn.Module:
    """Build 784-128-128-10, FedBIAD's MLP for MNIST."""
    return mlp(inputs=784, hidden=128, classes=10)


def fashion_mnist() -> nn.Module:
    """Build 784-256-256-10, FedBIAD's MLP for Fashion-MNIST."""
    return mlp(inputs=784, hidden=256, classes=10)


MODELS = {"digits": digits, "mnist": mnist, "fashion-mnist": fashion_mnist}
"""The model that goes with each data set."""
