"""FedBIAD's MLP for Fashion-MNIST: `edge-fl export examples/fashion_mlp.py:build --dataset fashion-mnist ...`."""

from torch import nn


def build() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
