"""Small models on 8 x 8 digits, each with a trait that the zoo's digits model lacks, for compare_commits.py."""

import torch
from torch import Tensor, nn


def normalised() -> nn.Module:
    """Build two layers with BatchNorm whose momenta differ, and whose statistics are not those of a new layer."""
    layers = nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(64, 7), nn.BatchNorm1d(7), nn.ReLU()),
        *(nn.Linear(7, 6), nn.BatchNorm1d(6, momentum=0.3), nn.ReLU()),
        nn.Linear(6, 10),
    )
    for norm in layers:
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.normal_(norm.get_buffer("running_mean"))
            nn.init.uniform_(norm.get_buffer("running_var"), 0.5, 2.0)
    return layers


def convolution() -> nn.Module:
    """Build a convolution with BatchNorm, whose filters own several columns of the layer behind it."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(54, 12), nn.ReLU(), nn.Linear(12, 10)),
    )


class _Recurrent(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 1, 8, 8]`` to ``[B, 10]``."""
        states, _ = self.lstm(x.reshape(-1, 8, 8))
        out: Tensor = self.out(states[:, -1])
        return out


def recurrent() -> nn.Module:
    """Build an LSTM over the image's rows."""
    torch.set_num_threads(1)
    return _Recurrent()
