"""How a model reaches a device: whole, or to one that holds an earlier one as the changes since, a frame each.

Both ends add the same numbers in the same way, so that a device ends with the very bytes of the coordinator's model
frame, and can tell by their digest.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Weights
from edge_fl.wire.context import Decoder
from edge_fl.wire.frame import Frame, decode_frame, encode_frame
from edge_fl.wire.values import FLOAT32

__all__ = ["changed", "decode_model", "follow"]


def changed(weights: Weights, change: Frame) -> dict[str, NDArray[np.float32]]:
    """Full ``weights`` plus a ``change`` of all of them, added in float64 and rounded once."""
    return {
        name: (tensor + change.values[name].astype(np.float64)).astype(np.float32)
        for name, tensor in weights.items()
    }


def decode_model(content: bytes | memoryview, layout: Layout, *, run: str, round: int) -> Frame:
    """The whole model of ``run`` that ``round`` trains.

    Raises
    ------
    FrameError
        As :func:`edge_fl.wire.frame.decode_frame`, and ``kind``, ``stale`` or ``mask`` when it is another frame.
    """
    frame = _whole(content, layout, "model")
    if (frame.header.run, frame.header.round) != (run, round):
        raise FrameError("stale", f"The model is for round {frame.header.round} of run '{frame.header.run}'.")
    return frame


def follow(model: bytes, changes: Sequence[bytes], layout: Layout, decoders: Mapping[str, Decoder]) -> bytes:
    """The frame of the model that ``changes``, in order, make of the one in the frame ``model``.

    ``decoders`` read the changes, which are compressed.

    Raises
    ------
    FrameError
        As :func:`edge_fl.wire.frame.decode_frame`, and ``kind``, ``stale`` or ``mask`` when one is no change, does not
        follow on the one before, or leaves out units.
    """
    frame = _whole(model, layout, "model")
    weights, header = dict(frame.values), frame.header
    for content in changes:
        change = _whole(content, layout, "change", decoders)
        if (change.header.run, change.header.version) != (header.run, header.version + 1):
            raise FrameError(
                "stale", f"The change makes version {change.header.version}, not {header.version + 1}."
            )
        weights, header = changed(weights, change), change.header
    header = msgspec.structs.replace(header, kind="model", values=FLOAT32)
    return encode_frame(header, Pattern.full(layout), weights)


def _whole(
    content: bytes | memoryview, layout: Layout, kind: str, decoders: Mapping[str, Decoder] = MappingProxyType({})
) -> Frame:
    frame = decode_frame(content, layout, decoders=decoders)
    if frame.header.kind != kind:
        raise FrameError("kind", f"The frame is a {frame.header.kind}, not a {kind}.")
    if frame.pattern.counts != frame.pattern.layout.sizes:
        raise FrameError("mask", f"The {kind} leaves out units.")
    return frame
