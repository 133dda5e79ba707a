"""Aggregating a round's updates, and decoding and checking them, against a plain memory copy of the same bytes."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from broker.acceptance import Expected, check_update
from broker.sums import accumulator
from edge_fl.core.divergence import max_change
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Weights
from edge_fl.measure.bars import Bars
from edge_fl.measure.models import random_weights
from edge_fl.measure.table import Result, Row
from edge_fl.measure.timing import medians
from edge_fl.methods.base import Ask
from edge_fl.recipes.recipe import Recipe, open_recipe
from edge_fl.wire.frame import Frame, Header, encode_frame

__all__ = ["bench_aggregate"]

_BARS = Bars(
    "Time of a round's sums and of its decoding, against a memory copy",
    ("model", "method"),
    ("aggregate / copy", "decode / copy"),
)

_HALF = {"dropout": [500]}
_METHODS: tuple[tuple[str, dict[str, Any]], ...] = (("fedavg", {}), ("fedbiad", _HALF), ("feddrop", _HALF))
_LIMIT = 3.0
"""How many times as long as the copy aggregation at p = 0.5 may take."""


def bench_aggregate(
    models: Mapping[str, tuple[Layout, int]], repeats: int, report: Callable[[str], None], named: str = ""
) -> Result:
    """Time the aggregation of a round of updates of each method.

    Parameters
    ----------
    models
        By name: the layout, and how many updates are a round.
    named
        The options that named them, for the page.
    """
    rows: list[Row] = []
    for model, (layout, count) in models.items():
        weights = random_weights(layout, 0)
        for method, parameters in _METHODS:
            report(f"{model}, {method}")
            updates = _Updates(layout, weights, open_recipe(method, parameters), count)
            rows.append({"model": model, "method": method, **updates.measure(repeats)})
    return Result(
        title="Aggregation",
        command=f"edge-fl bench aggregate{named} --repeats {repeats}",
        about="A round's updates on the coordinator, each of another client with a pattern of its own (p = 0.5, but "
        "for FedAvg's) and another number of samples. Aggregation makes the weighted float64 sums of decoded updates, "
        "and the change of the model that the method's rule makes of them. Decoding parses frames, verifies their "
        "checksums, and checks that every value is finite and that each is what its client was asked for. Ratios are "
        "to a copy of the frames into memory of their size, in turn with it: medians of CPU time, one thread. Goals "
        "are the project's own.",
        rows=rows,
        bars=_BARS,
    )


class _Updates:
    """The frames of a round, what is in them, and memory to copy them to."""

    def __init__(self, layout: Layout, weights: Weights, recipe: Recipe, count: int) -> None:
        self._layout, self._weights, self._recipe = layout, weights, recipe
        self._encoded = [self._update(client) for client in range(count)]
        self._decoded = list(self._decode())
        self._room = np.empty(sum(len(data) for data, _ in self._encoded), dtype=np.uint8)

    def measure(self, repeats: int) -> dict[str, str | float]:
        """What the table says of them."""
        alternatives = {"copy": self._copy, "aggregate": self._aggregate, "decode": self._decode}
        took = medians(alternatives, repeats=repeats, clock=time.process_time)
        ratio, method = took["aggregate"] / took["copy"], self._recipe.method
        reached = f"aggregate / copy ≤ {_LIMIT:g}: {'yes' if ratio <= _LIMIT else 'no'}"
        return {
            "mode": method.mode,
            "rule": method.rule,
            "updates": len(self._encoded),
            "MB": len(self._room) / 1e6,
            "copy (ms)": 1e3 * took["copy"],
            "aggregate / copy": ratio,
            "decode / copy": took["decode"] / took["copy"],
            "goals": "" if method.name == "fedavg" else reached,
        }

    def _copy(self) -> None:
        start = 0
        for data, _ in self._encoded:
            np.copyto(self._room[start : start + len(data)], np.frombuffer(data, dtype=np.uint8))
            start += len(data)

    def _aggregate(self) -> None:
        sums = accumulator(self._layout, self._recipe.rule, "cpu")
        for frame in self._decoded:
            sums.add(frame.selection, frame.values, frame.header.samples)
        sums.change(self._weights)

    def _decode(self) -> list[Frame]:
        return [check_update(data, expected) for data, expected in self._encoded]

    def _update(self, number: int) -> tuple[bytes, Expected]:
        """One client's frame, and what it was asked for."""
        layout, method, client, samples = self._layout, self._recipe.method, f"client-{number}", 500 + number
        assigned = method.assign(Ask(layout, client, tier=0, round=1, seed=0))
        drawn = Pattern.seeded(layout, 0 if method.name == "fedavg" else 500, key=number)
        header = Header(
            kind="update",
            run="bench",
            round=1,
            version=0,
            layout="",
            method=method.name,
            mode=method.mode,
            client=client,
            samples=samples,
        )
        frame = encode_frame(header, assigned or drawn, self._weights)
        return frame, Expected(
            layout, self._recipe, "bench", 1, 0, client, 0, samples, max_change(layout, self._weights), assigned
        )
