"""Two layouts: a small one with every kind of segment, and the paper's Fashion-MNIST network."""

import pytest

from edge_fl.core.layout import Axis, Block, Layout, Segment, Tensor


def free(n: int) -> Axis:
    return (Segment(None, inner=n),)


@pytest.fixture(scope="session")
def small() -> Layout:
    """A 3-filter convolution flattened into 2 pixels each, a 2-unit LSTM gate matrix, a statistic."""
    conv: Axis = (Segment("conv"),)
    flat: Axis = (Segment("conv", inner=2),)
    gates: Axis = (Segment("hidden", outer=2),)
    return Layout(
        (Block("conv", 3), Block("hidden", 2)),
        (
            Tensor("conv.weight", (3, 2), (conv, free(2)), (conv, free(2))),
            Tensor("lstm.weight", (4, 6), (gates, free(6)), (gates, flat)),
            Tensor("conv.mean", (3,), (free(3),), (conv,), role="statistic"),
            Tensor("scale", (), (), ()),
        ),
    )


@pytest.fixture(scope="session")
def mlp() -> Layout:
    """784-256-256-10."""
    one: Axis = (Segment("fc1"),)
    two: Axis = (Segment("fc2"),)
    return Layout(
        (Block("fc1", 256), Block("fc2", 256)),
        (
            Tensor("fc1.weight", (256, 784), (one, free(784)), (one, free(784))),
            Tensor("fc1.bias", (256,), (one,), (one,)),
            Tensor("fc2.weight", (256, 256), (two, free(256)), (two, one)),
            Tensor("fc2.bias", (256,), (two,), (two,)),
            Tensor("fc3.weight", (10, 256), (free(10), free(256)), (free(10), two)),
            Tensor("fc3.bias", (10,), (free(10),), (free(10),)),
        ),
    )
