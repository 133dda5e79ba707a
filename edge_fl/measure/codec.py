"""Encoding and decoding of frames against a plain memory copy of the same bytes."""

from edge_fl.core.layout import Layout, Mode
from edge_fl.core.pattern import Pattern
from edge_fl.measure.bars import Bars
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.measure.table import Result
from edge_fl.measure.timing import medians
from edge_fl.wire.frame import Header, decode_frame, encode_frame

__all__ = ["bench_codec"]

_BARS = Bars("Bytes of a frame as a share of a dense frame", ("model", "frame"), ("of dense",))

_MODELS = {"784-256-256-10": (784, 256, 256, 10), "2048-2048-2048-10": (2048, 2048, 2048, 10)}
_CASES: list[tuple[str, int, Mode]] = [
    ("dense", 0, "rows"),
    ("p = 0.5, rows", 500, "rows"),
    ("p = 0.5, units", 500, "units"),
]


def bench_codec(repeats: int) -> Result:
    """Time every kind of frame of a small and a large perceptron."""
    rows = []
    for model, sizes in _MODELS.items():
        layout = mlp_layout(*sizes)
        dense = len(_encode(layout, 0, "rows"))
        for case, dropout, mode in _CASES:
            rows.append({"model": model, "frame": case, **_measure(layout, dropout, mode, dense, repeats)})
    return Result(
        title="Frame codec",
        command="edge-fl bench codec",
        about="Encoding gathers the kept rows out of the full tensors, checksums and frames them; decoding checks "
        "the checksum and that every value is finite, and gives views. Ratios are to a memory copy of the frame's "
        "bytes, measured in turn with it; medians. The CRC-32 alone is about 5 of each ratio while the frame fits "
        "in cache.",
        rows=rows,
        bars=_BARS,
    )


def _measure(layout: Layout, dropout: int, mode: Mode, dense: int, repeats: int) -> dict[str, float | int]:
    weights = random_weights(layout, 0)
    pattern = _pattern(layout, dropout)
    frame = _encode(layout, dropout, mode)
    target = bytearray(len(frame))

    def copy() -> None:
        target[:] = frame

    took = medians(
        {
            "copy": copy,
            "encode": lambda: encode_frame(_header(mode), pattern, weights),
            "decode": lambda: decode_frame(frame, layout),
        },
        repeats=repeats,
    )
    return {
        "bytes": len(frame),
        "of dense": len(frame) / dense,
        "copy (ms)": 1e3 * took["copy"],
        "encode / copy": took["encode"] / took["copy"],
        "decode / copy": took["decode"] / took["copy"],
    }


def _encode(layout: Layout, dropout: int, mode: Mode) -> bytes:
    return encode_frame(_header(mode), _pattern(layout, dropout), random_weights(layout, 0))


def _pattern(layout: Layout, dropout: int) -> Pattern:
    return Pattern.seeded(layout, dropout, key=1) if dropout else Pattern.full(layout)


def _header(mode: Mode) -> Header:
    return Header(
        kind="update",
        run="bench",
        round=1,
        version=0,
        layout="",
        method="fedbiad",
        mode=mode,
        client="client",
        samples=600,
        loss=1.0,
    )
