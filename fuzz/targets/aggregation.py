"""A device in secure aggregation, against a coordinator that asks for anything in any order."""

from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from edge_fl.core.errors import FrameError
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.secure_aggregation.participant import Participant
from edge_fl.secure_aggregation.roster import Member, Roster, encode_roster
from edge_fl.wire.frame import Frame, Header, decode_frame, encode_frame
from edge_fl.wire.masks import encode_mask
from edge_fl.wire.messages import Shares
from edge_fl.wire.values import WITHHELD, values_size
from fuzz.target import Draws, Exhausted, Prepared

__all__ = ["participant"]

_VECTORS = Path(__file__).parents[2] / "tests" / "vectors"
_OWN, _OTHERS = "a", ("b", "c")
_SAMPLES = 9


class _Case:
    """One conversation: what the device said of secrets, by member."""

    def __init__(self, layout: Layout, draws: Draws) -> None:
        self._layout, self._draws = layout, draws
        self._devices = {client: self._device(client) for client in (_OWN, *_OTHERS)}
        self._own, self._attempt = self._devices[_OWN], 1
        self._sealed: dict[str, bytes] = {}
        self._survivors: frozenset[str] | None = None

    def _device(self, client: str) -> Participant:
        frame = self._frame(client)
        return Participant(frame, bytes(values_size(frame.selection)), self._layout)

    def _frame(self, client: str) -> Frame:
        header = Header(
            "update",
            "run-1",
            3,
            2,
            self._layout.digest,
            "fedavg",
            mode="rows",
            client=client,
            samples=_SAMPLES,
            values=WITHHELD,
        )
        pattern = Pattern.prefix(self._layout, 500 if client == _OWN else 1000)
        return decode_frame(encode_frame(header, pattern, {}), self._layout)

    def play(self) -> None:
        """Until the case is used up."""
        steps = (self._begin, self._share, self._mask, self._unmask)
        with suppress(Exhausted):
            while True:
                with suppress(FrameError):
                    self._draws.pick(steps)()

    def _begin(self) -> None:
        self._attempt = self._draws.byte() % 4
        self._own.keys(self._attempt)
        for other in _OTHERS:
            self._devices[other] = self._device(other)  # honest ones, whose attempt may be any
            self._devices[other].keys(self._attempt)
        self._sealed.clear()

    def _share(self) -> None:
        keys = {client: device.keys(self._attempt) for client, device in self._devices.items()}
        members, most = [], self._draws.pick([_SAMPLES, 1, 2**31 - 1])
        for client, one in keys.items():
            mask, pattern = encode_mask(Pattern.prefix(self._layout, 500 if client == _OWN else 1000))
            weight = min(_SAMPLES, most)
            members.append(
                Member(client, weight, _SAMPLES, mask, pattern, one.encryption, one.masking, one.commitment)
            )
        holders = self._draws.pick([2, 3])
        content = encode_roster(Roster("run-1", 3, self._attempt, 2, holders, 1.0, "rows", tuple(members)))
        if self._draws.byte() % 4 == 0:
            place, spoiled = self._draws.byte() % len(content), bytearray(content)
            spoiled[place] ^= 1 + self._draws.byte() % 255
            content = bytes(spoiled)
        self._own.shares(self._attempt, content)
        for other in _OTHERS:
            answer: Shares = self._devices[other].shares(self._attempt, content)
            self._sealed[other] = answer.sealed[_OWN]

    def _mask(self) -> None:
        sealed = {
            other: self._sealed[other] for other in _OTHERS if other in self._sealed and self._draws.byte() % 4
        }
        if self._draws.byte() % 4 == 0:
            sealed[self._draws.pick(["b", "x", _OWN])] = self._draws.bytes()
        self._own.masked(self._attempt, sealed)

    def _unmask(self) -> None:
        survivors = frozenset(client for client in (_OWN, *_OTHERS, "x") if self._draws.byte() % 3)
        self._own.unmask(self._attempt, sorted(survivors))
        assert self._survivors in (None, survivors), "a device unmasked two sums of a round"
        self._survivors = survivors


def participant() -> Prepared:
    """Steps in any order, with rosters and shares good and bad."""
    held = msgspec.json.decode((_VECTORS / "layout.json").read_bytes())
    layout = msgspec.convert(held["layout"], Layout)
    seed = np.array([0, 1, 1, 0, 0, 0, 1, 2, 1, 1, 1, 3, 1, 1, 1, 0], dtype=np.uint8).tobytes()

    def run(data: bytes) -> None:
        _Case(layout, Draws(data)).play()

    return Prepared(run, [seed, seed * 3])
