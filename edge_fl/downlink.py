"""How a model reaches a device that holds an earlier one: as the changes since, each a frame of its own.

Both ends add the same numbers in the same way, so that a device ends with the very bytes of the coordinator's model
frame, and can tell by their digest.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.layout import Layout
from edge_fl.pattern import Pattern
from edge_fl.selection import Weights
from edge_fl.wire.frame import Frame, decode_frame, encode_frame
from edge_fl.wire.values import FLOAT32

__all__ = ["changed", "follow"]


def changed(weights: Weights, change: Frame) -> dict[str, NDArray[np.float32]]:
    """Full ``weights`` plus a ``change`` of all of them, added in float64 and rounded once."""
    return {
        name: (tensor + change.values[name].astype(np.float64)).astype(np.float32)
        for name, tensor in weights.items()
    }


def follow(model: bytes, changes: Sequence[bytes], layout: Layout) -> bytes:
    """The frame of the model that ``changes``, in order, make of the one in the frame ``model``.

    Raises
    ------
    FrameError
        As :func:`edge_fl.wire.frame.decode_frame`.
    """
    frame = decode_frame(model, layout)
    weights, header = dict(frame.values), frame.header
    for content in changes:
        change = decode_frame(content, layout)
        weights, header = changed(weights, change), change.header
    header = msgspec.structs.replace(header, kind="model", values=FLOAT32)
    return encode_frame(header, Pattern.full(layout), weights)
