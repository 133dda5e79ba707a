"""The CIFAR version of ResNet-18 (He et al., arXiv:1512.03385), as FjORD, TCS and HeteroFL train it.

The stem is one 3 x 3 convolution without pooling, made for 32 x 32 pixels; four stages of two basic blocks follow, and
a 1 x 1 convolution on a shortcut wherever the shape changes. TCS (arXiv:2004.03950, section III-A) gives its
11,173,962 parameters.
"""

import torch
from torch import Tensor, nn

from exporter.zoo.entry import Architecture, Entry

__all__ = ["ENTRIES", "BasicBlock", "ResNet", "resnet18"]


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: ``[B, inputs, H, W]`` to ``[B, outputs, H/stride, W/stride]``."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut to the convolutions' output, ReLU after the sum (post-activation)."""
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """Maps images ``[B, 3, H, W]`` float32 to logits ``[B, classes]``.

    Parameters
    ----------
    channels
        Width of each stage; the first keeps the images' size, each further one halves it.
    blocks
        Basic blocks a stage.
    classes
        Number of classes.
    """

    def __init__(self, *, channels: tuple[int, ...], blocks: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.stages = nn.Sequential()
        inputs = channels[0]
        for stage, outputs in enumerate(channels):
            for block in range(blocks):
                self.stages.append(BasicBlock(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes from the mean over all places of the last stage."""
        h = torch.relu(self.bn1(self.conv1(x)))
        logits: Tensor = self.linear(self.pool(self.stages(h)).flatten(1))
        return logits


def resnet18(*, channels: tuple[int, ...] = (64, 128, 256, 512), blocks: int = 2) -> nn.Module:
    """Build ResNet-18 for CIFAR-10; takes ``[B, 3, 32, 32]`` float32, gives ``[B, 10]`` logits."""
    return ResNet(channels=channels, blocks=blocks, classes=10)


ENTRIES = (
    Entry(
        name="resnet18",
        dataset="cifar-10",
        build=resnet18,
        input_shape=(3, 32, 32),
        classes=10,
        narrowed=Architecture(
            build=lambda: resnet18(channels=(4, 5), blocks=1), input_shape=(3, 8, 8), classes=10
        ),
    ),
)
