"""Whole architectures that no zoo holds: a MobileNetV2-like and a recurrent classifier, small."""

import torch
from torch import Tensor, nn


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, project back without an activation (Sandler et al., 2018)."""

    def __init__(self, inputs: int, widened: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            *[nn.Conv2d(inputs, widened, 1, bias=False), nn.BatchNorm2d(widened), nn.ReLU6()],
            nn.Conv2d(widened, widened, 3, stride, padding=1, groups=widened, bias=False),
            *[nn.BatchNorm2d(widened), nn.ReLU6()],
            *[nn.Conv2d(widened, outputs, 1, bias=False), nn.BatchNorm2d(outputs)],
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


class MobileNet(nn.Module):
    """Takes ``[B, 3, 12, 12]`` float32, gives ``[B, 5]``; ``widened`` is inside a block, ``channels`` between."""

    def __init__(self, *, channels: tuple[int, int] = (4, 6), widened: int = 8) -> None:
        super().__init__()
        first, second = channels
        self.stem = nn.Sequential(nn.Conv2d(3, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU6())
        self.blocks = nn.Sequential(
            InvertedResidual(first, widened, first, stride=1),
            InvertedResidual(first, widened, second, stride=2),
            InvertedResidual(second, widened, second, stride=1),
        )
        self.head = nn.Sequential(nn.Conv2d(second, widened, 1, bias=False), nn.BatchNorm2d(widened), nn.ReLU6())
        self.out = nn.Linear(widened, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = self.head(self.blocks(self.stem(x)))
        out: Tensor = self.out(features.mean(dim=(2, 3)))
        return out


class GRUClassifier(nn.Module):
    """Takes sequences ``[B, T, 3]`` float32, gives ``[B, 4]`` from the last state of two GRU layers."""

    def __init__(self, *, hidden: int = 6) -> None:
        super().__init__()
        self.gru = nn.GRU(3, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x)
        out: Tensor = self.out(torch.tanh(states[:, -1]))
        return out
