"""CifarNet for MNIST and Fashion-MNIST, as in federated learning by variational dropout (Du et al.).

That paper gives the name and 1.3M parameters. The network called so that has them is M-CifarNet (Gao et al., "Dynamic
Channel Pruning: Feature Boosting and Suppression", ICLR 2019): eight 3 x 3 convolutions with BatchNorm, the mean over
all places, and an output layer. Its dropout layers are left out: variational dropout takes their place.
"""

from torch import nn

from exporter.zoo.entry import Architecture, Entry

__all__ = ["ENTRIES", "cifarnet"]

_STRIDES = (1, 1, 2, 1, 1, 2, 1, 1)


def cifarnet(*, inputs: int = 1, channels: tuple[int, ...] = (64, 64, 128, 128, 128, 192, 192, 192)) -> nn.Module:
    """Build CifarNet, of at most eight convolutions; takes ``[B, inputs, H, W]`` float32, gives ``[B, 10]`` logits."""
    layers: list[nn.Module] = []
    for before, outputs, stride in zip((inputs, *channels[:-1]), channels, _STRIDES, strict=False):
        layers += [
            nn.Conv2d(before, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 10))


ENTRIES = (
    Entry(
        name="cifarnet",
        dataset="mnist",
        build=cifarnet,
        input_shape=(1, 28, 28),
        classes=10,
        narrowed=Architecture(build=lambda: cifarnet(channels=(3, 4, 3)), input_shape=(1, 6, 6), classes=10),
    ),
)
