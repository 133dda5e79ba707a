import struct
from collections.abc import Callable

import pytest

from edge_fl.core.bundle import Bundle
from edge_fl.core.inputs import Input
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.methods.base import Method
from edge_fl.wire.frame import Header, encode_frame


@pytest.fixture(scope="session")
def fmnist() -> Layout:
    """The MLP that the methods' docstrings give sizes for."""
    return mlp_layout(784, 256, 256, 10)


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two hidden layers of 10 units for the digits, with the steps that methods here need, for onnx alone."""
    import torch

    from exporter.export import Target, export_bundle
    from exporter.zoo.mlp import mlp

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = Input((1, 8, 8), "float32")
    target = Target("digits", "digits", shape, 10, ("onnx",), variants=("plain", "distil"))
    return export_bundle(
        mlp(inputs=64, hidden=10, classes=10), target, tmp_path_factory.mktemp("small") / "bundle"
    )


@pytest.fixture(scope="session")
def numbers_sent(fmnist: Layout) -> Callable[[Method, Pattern], int]:
    """How many float32 numbers an update of a method carries, read off its frame."""
    weights = random_weights(fmnist, 0)

    def numbers(method: Method, pattern: Pattern) -> int:
        header = Header(
            kind="update", run="r", round=1, version=0, layout="", method=method.name, mode=method.mode
        )
        frame = encode_frame(header, pattern, weights)
        (values,) = struct.unpack_from("<Q", frame, 16)
        assert len(frame) - values < 400  # prelude, header and mask
        return values // 4

    return numbers
