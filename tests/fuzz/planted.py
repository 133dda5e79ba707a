"""Faults of every kind that a campaign must find."""

import time

from fuzz.target import Prepared


def none() -> Prepared:
    return Prepared(lambda data: None, [b"seed"])


def _case(fault: str, data: bytes) -> None:
    if len(data) > 2 and data[0] > data[1]:
        match fault:
            case "raises":
                raise KeyError("planted")
            case "allocates":
                bytearray(1 << 33)
            case "hangs":
                time.sleep(60)


def fault(kind: str) -> Prepared:
    return Prepared(lambda data: _case(kind, data), [b"\0\1\2"])
