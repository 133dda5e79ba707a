"""BatchNorm statistics gathered from devices once training is over: what was asked, and what the answers come to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from broker.acceptance import check_statistics
from broker.poll import Poll
from edge_fl.core.bundle import Manifest
from edge_fl.core.content import Ref
from edge_fl.core.selection import Weights
from edge_fl.methods.base import Method
from edge_fl.runs.config import RunConfig
from edge_fl.training.batch_statistics import gathered, own_row
from edge_fl.wire.frame import Frame
from edge_fl.wire.messages import Gather, Gathered, Register

__all__ = ["StatisticsRound", "ask", "gathers", "widths_asked"]


@dataclass
class StatisticsRound(Poll[Gathered]):
    """The statistics of the model after the last round; ``frames`` are those of the answers."""

    kind = Gathered
    statuses = ("gathering", "gathered")

    manifest: Manifest = field(kw_only=True)
    frames: dict[str, Frame] = field(default_factory=dict)

    def check(self, client: str, answer: Gathered, profile: Register) -> None:
        """As :func:`broker.acceptance.check_statistics`; the frame is kept."""
        task = self.tasks[client]
        self.frames[client] = check_statistics(
            answer.frame, task, client=client, samples=profile.samples, manifest=self.manifest
        )

    def samples(self) -> dict[int, int]:
        """How many samples were gathered at each width (thousandths)."""
        found: dict[int, int] = {}
        for client, frame in sorted(self.frames.items()):
            width = self.tasks[client].width
            found[width] = found.get(width, 0) + frame.header.samples
        return found

    def combined(self, weights: Weights) -> dict[str, NDArray[np.float32]]:
        """Full ``weights`` with the mean of what clients gathered, weighted by their samples.

        It is summed in float64 in the order of ids. Entries that nobody gathered stay as they are.
        """
        result = dict(weights)
        for tensor in gathered(self.manifest):
            sums, counts = np.zeros(tensor.shape), np.zeros(tensor.shape)
            for client in sorted(self.frames):
                frame = self.frames[client]
                row, samples = own_row(self.manifest, tensor, self.tasks[client].width), frame.header.samples
                full = np.zeros(tensor.shape)
                held = np.zeros(tensor.shape)
                full[frame.selection.index(tensor)] = frame.values[tensor.name]
                held[frame.selection.index(tensor)] = 1
                sums[row] += samples * full[row]
                counts[row] += samples * held[row]
            known = counts > 0
            new = np.array(weights[tensor.name])
            new[known] = (sums[known] / counts[known]).astype(np.float32)
            result[tensor.name] = new
        return result


def gathers(method: Method, manifest: Manifest) -> bool:
    """Whether a run of ``method`` on that bundle ends with gathering statistics."""
    return method.gathers_statistics and bool(gathered(manifest))


def widths_asked(method: Method, manifest: Manifest, tiers: Mapping[str, int]) -> dict[str, int]:
    """The width (thousandths) whose statistics each client is asked for, given the tier of each.

    Its own tier's where BatchNorm has statistics for each width. Where it has one set for all, they belong to the
    widest model there is, and only clients that can run that are asked.
    """
    widths = {client: method.evaluated_width(tier) for client, tier in tiers.items()}
    if manifest.statistic_widths:
        return widths
    widest = max(widths.values(), default=0)
    return {client: width for client, width in widths.items() if width == widest}


def ask(config: RunConfig, round: int, model: Ref, width: int) -> Gather:
    """What a client is asked; a coordinator adds the changes that lead to the model."""
    return Gather(config.run, round, model, width, config.batch, config.seed, since=round)
