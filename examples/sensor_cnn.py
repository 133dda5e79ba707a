"""A 1-D CNN for windows of six sensor channels and four activities: `edge-fl export examples/sensor_cnn.py:build`."""

from torch import nn


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(6, 16, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Conv1d(16, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Flatten(),
        nn.Linear(32 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 4),
    )
