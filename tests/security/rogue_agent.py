"""A device that lies: ``rogue_agent.py LIE OPTIONS`` is `edge-fl device OPTIONS` with something else in its updates.

``999`` sends 999 in place of every change, and ``late`` does so from round 4 on. ``tenth`` takes a tenth of each weight
away. ``boast`` claims to have 2^31 - 1 samples.

In secure aggregation ``shares`` gives wrong shares in round 1. ``keys`` gives keys without a signature in round 1, and
offers a masked update of another size in round 2.
"""

import sys
from typing import Any

import msgspec
import numpy as np

from edge_fl.agent import agent, aggregation
from edge_fl.cli.main import run
from edge_fl.core.selection import Selection
from edge_fl.secure_aggregation.participant import Participant
from edge_fl.training import update
from edge_fl.wire.messages import Keys, Unmasked

_MOST = 2**31 - 1
_LIES = {
    "999": lambda weights: {name: np.full_like(array, 999) for name, array in weights.items()},
    "late": lambda weights: {name: np.full_like(array, 999) for name, array in weights.items()},
    "tenth": lambda weights: {name: np.float32(-0.1) * array for name, array in weights.items()},
}


class Lying(update.Visit):
    """Trains, and sends something else."""

    lie = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        honest = update.encode_kept

        def lied(header: Any, pattern: Any, delta: Any, section: Any) -> bytes:
            update.encode_kept = honest
            if self.lie == "late" and self._job.round < 4:
                return honest(header, pattern, delta, section)
            if self.lie == "boast":
                return honest(msgspec.structs.replace(header, samples=_MOST), pattern, delta, section)
            lie = Selection.of(pattern, header.mode).gather(_LIES[self.lie](self._job.weights))
            return honest(header, pattern, lie, section)

        update.encode_kept = lied


class WrongShares(Participant):
    """Helps nobody unmask round 1."""

    def unmask(self, attempt: int, survivors: Any) -> Unmasked:
        honest = super().unmask(attempt, survivors)
        wrong = dict.fromkeys(honest.shares, bytes(range(32)))
        return honest if self.round > 1 else msgspec.structs.replace(honest, shares=wrong)


class WrongKeys(Participant):
    """Is kept out of round 1 by its keys, and of round 2 by its update."""

    def keys(self, attempt: int) -> Keys:
        honest = super().keys(attempt)
        return honest if self.round > 1 else msgspec.structs.replace(honest, signature=b"", certificate=b"")

    def masked(self, attempt: int, sealed: Any) -> bytes:
        return super().masked(attempt, sealed) + bytes(1_000_000)


_SECURE: dict[str, type[Participant]] = {"shares": WrongShares, "keys": WrongKeys}


def main() -> None:
    """Lie as the first word says."""
    Lying.lie = sys.argv.pop(1)
    if Lying.lie in _SECURE:
        aggregation.Participant = _SECURE[Lying.lie]  # type: ignore[misc]
    else:
        update.Visit = Lying  # type: ignore[misc]
    if Lying.lie == "boast":
        honest = agent.Register
        agent.Register = lambda **fields: honest(**(fields | {"samples": _MOST}))  # type: ignore[assignment,misc]
    sys.argv[1:1] = ["device", "--in-process"]  # where this Visit is
    sys.exit(run())


if __name__ == "__main__":
    main()
