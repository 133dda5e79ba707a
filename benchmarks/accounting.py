"""Uploads as FedBIAD's paper counts them, beside which measured frames are put.

Table I counts the weights of kept rows at 4 bytes each, whole rows whatever a method leaves out, and no biases, in
KiB: 784-256-256-10 at p = 0.5 is ``4 (784*128 + 256*128 + 10*256) / 1024`` = 530. Table II counts what is left of
these weights by a compressor: 8 bits for FedPAQ's, 1 for signSGD's, and for those that send a few entries 64 bits for
each position, with a value of 32 bits (DGC, top-k) or a sign (STC).
"""

import math
from functools import cache
from statistics import mean
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from benchmarks.runs import Run
from edge_fl.compressors._section import kept_count
from edge_fl.compressors.base import Compressor
from edge_fl.core.layout import Layout
from edge_fl.core.pattern import Pattern
from edge_fl.core.selection import Selection
from exporter.derive import derive
from exporter.measure.cases import find_case

__all__ = ["counted_bytes", "dense_run", "layout_of"]

_POSITION, _VALUE, _SIGN = 64, 32, 1


@cache
def layout_of(model: str) -> Layout:
    """The layout of a model that is benchmarked, by its name."""
    case = find_case(model)
    return derive(case.build(), torch.from_numpy(case.batch().x)).layout


def counted_bytes(run: Run) -> float | None:
    """The mean bytes of an update in the last round, over the tiers of ``run``; None for a compressor not counted so.

    The last, because the ratios of Table II leave DGC's warm-up out.
    """
    recipe, layout = run.open(), layout_of(run.case().name)
    kept = [_kept_weights(layout, recipe.method.counts(layout, tier)) for tier in range(run.tiers)]
    if recipe.compressor is None:
        return mean(4 * n for n in kept)
    sizes = [_bits(recipe.compressor, n, run.rounds) for n in kept]
    return None if None in sizes else mean(bits / 8 for bits in sizes if bits is not None)


def dense_run(run: Run) -> Run:
    """The run of FedAvg whose updates those of ``run`` are compared with."""
    return replace(run, recipe="fedavg", parameters={}, tiers=1)


def _kept_weights(layout: Layout, counts: dict[str, int]) -> int:
    """Entries of the kept rows of every matrix, whichever rows are kept."""
    mask = np.concatenate([np.arange(block.size) < counts[block.name] for block in layout.blocks])
    rows = Selection.of(Pattern(layout, mask), "rows")
    return sum(math.prod(rows.shape(tensor)) for tensor in layout.parameters if len(tensor.shape) > 1)


def _bits(compressor: Compressor, n: int, round: int) -> float | None:
    parameters: Any = compressor.parameters
    match compressor.name:
        case "fedpaq":
            return float(parameters.bits * n)
        case "signsgd":
            return float(n)
        case "stc":
            return float(kept_count(parameters.ratio, n) * (_POSITION + _SIGN))
        case "topk":
            return float(kept_count(parameters.ratio, n) * (_POSITION + _VALUE))
        case "dgc":
            return float(kept_count(parameters.share(round), n) * (_POSITION + _VALUE))
    return None
