"""VGG-like, as in federated learning by variational dropout (Du et al.): VGG-16 without its fully connected layers.

The thirteen 3 x 3 convolutions of VGG-16 (Simonyan and Zisserman, arXiv:1409.1556), BatchNorm after each as in the
VGG-like of Zagoruyko (2015) that Molchanov et al. (arXiv:1701.05369) sparsify, and an output layer. At 32 x 32 pixels
that is 14.7M parameters. The paper prints 18.8M, which is those convolutions and the last layer of the ImageNet model
(4096 to 1000), though the two do not fit together; its 11.7M for ResNet-18 is the ImageNet model as well.
"""

from torch import nn

from exporter.zoo.entry import Architecture, Entry

__all__ = ["ENTRIES", "vgg_like"]


def vgg_like(
    *, channels: tuple[int, ...] = (64, 128, 256, 512, 512), depths: tuple[int, ...] = (2, 2, 3, 3, 3)
) -> nn.Module:
    """Build VGG-like; takes ``[B, 3, 32, 32]`` float32 (halved by every stage to one place), gives ``[B, 10]`` logits.

    Parameters
    ----------
    channels
        Width of each stage; all end in 2 x 2 max pooling.
    depths
        Convolutions of each stage.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, depth in zip(channels, depths, strict=True):
        for _ in range(depth):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, 10))


ENTRIES = (
    Entry(
        name="vgg-like",
        dataset="cifar-10",
        build=vgg_like,
        input_shape=(3, 32, 32),
        classes=10,
        narrowed=Architecture(
            build=lambda: vgg_like(channels=(4, 5), depths=(1, 1)),
            input_shape=(3, 4, 4),
            classes=10,
        ),
    ),
)
