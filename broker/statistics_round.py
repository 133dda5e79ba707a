"""BatchNorm statistics collected from devices once training is over: what was asked, and what the answers come to."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.acceptance import check_statistics
from broker.defence import bounds_of
from broker.fleet import Fleet
from broker.model import GlobalModel
from broker.poll import Poll
from broker.tiers import Tiers
from edge_fl.aggregation.bounds import ENOUGH, Bounds, Limits, Size, root_mean_square
from edge_fl.core.bundle import Manifest
from edge_fl.core.layout import Layout
from edge_fl.core.selection import Weights
from edge_fl.methods.base import DropoutMethod, Method
from edge_fl.methods.capabilities import CollectsStatistics, evaluated_width, width_factor
from edge_fl.runs.config import RunConfig
from edge_fl.training.batch_statistics import collectable, own_row
from edge_fl.wire.frame import Frame
from edge_fl.wire.messages import CollectedStatistics, CollectStatistics, Register

__all__ = ["StatisticsRound", "collect_statistics", "collects", "drops_units", "widths_asked", "with_collection"]

_log = logging.getLogger(__name__)


@dataclass
class StatisticsRound(Poll[CollectStatistics, CollectedStatistics]):
    """The statistics of the model after the last round; ``frames`` are those of the answers."""

    kind = CollectedStatistics
    statuses = ("collecting", "collected")

    manifest: Manifest = field(kw_only=True)
    bounds: Bounds = field(default_factory=Bounds, kw_only=True)
    frames: dict[str, Frame] = field(default_factory=dict)

    def check(self, client: str, answer: CollectedStatistics, profile: Register) -> None:
        """As :func:`broker.acceptance.check_statistics`; the frame is kept."""
        task = self.tasks[client]
        frame = check_statistics(
            answer.frame, task, client=client, samples=profile.samples, manifest=self.manifest
        )
        held = {tensor.name: np.array(frame.values[tensor.name]) for tensor in self.manifest.layout.statistics}
        self.frames[client] = replace(frame, values=held, sent=None)  # without the parameters' zeros

    def samples(self) -> dict[int, int]:
        """How many samples are behind the statistics of each width (thousandths)."""
        found: dict[int, int] = {}
        for client, frame in sorted(self.frames.items()):
            width = self.tasks[client].width
            found[width] = found.get(width, 0) + frame.header.samples
        return found

    def combined(self, weights: Weights) -> dict[str, NDArray[np.float32]]:
        """Full ``weights`` with the mean of what clients collected, weighted by their samples.

        It is summed in float64 in the order of ids, and no client counts for more than ``bounds`` let it: one whose
        statistics are more than twice as large as a bound on norms allows does not count. Entries that nobody collected
        stay as they are.
        """
        result, counted = dict(weights), self._counted()
        most = self.bounds.most_samples([self.frames[client].header.samples for client in counted])
        for tensor in collectable(self.manifest):
            sums, counts = np.zeros(tensor.shape), np.zeros(tensor.shape)
            for client in counted:
                frame = self.frames[client]
                row, samples = own_row(self.manifest, tensor, self.tasks[client].width), frame.header.samples
                samples = min(samples, int(most)) if math.isfinite(most) else samples
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

    def _counted(self) -> list[str]:
        """The clients that count, in the order of their ids.

        Beside four others or more of the same width, none whose statistics are more than twice as large as the bound
        on norms allows.
        """
        if self.bounds.norm is None:
            return sorted(self.frames)
        sizes = {client: root_mean_square(frame.values.values()) for client, frame in sorted(self.frames.items())}
        counted = []
        for client, size in sizes.items():
            width = self.tasks[client].width
            same = [other for name, other in sizes.items() if self.tasks[name].width == width]
            clip = Limits(statistics=self.bounds.norm * median(same)).clip(Size(0.0, 0.0, size))
            if len(same) >= ENOUGH and clip.suspicious:
                _log.warning("the statistics of '%s' are left out: they are far larger than the others'", client)
            else:
                counted.append(client)
        return counted


def collects(config: RunConfig, method: Method, manifest: Manifest) -> bool:
    """Whether a run of ``method`` on that bundle ends with collecting statistics."""
    wanted = config.collect_statistics
    if wanted is None:
        wanted = isinstance(method, CollectsStatistics) and method.collects_statistics
    return wanted and bool(collectable(manifest))


def with_collection(config: RunConfig, method: Method, manifest: Manifest) -> RunConfig:
    """The config of a run that begins now, which collects where ``method`` drops units and nothing stands against it.

    As the run says, or the method itself. Every runtime must have the step for it. Privacy, secure aggregation and
    ``keep_best`` stand against it.
    """
    told = config.collect_statistics is not None or isinstance(method, CollectsStatistics)
    if told or not drops_units(method, manifest.layout) or not collectable(manifest):
        return config
    sizes = manifest.layout.sizes
    steps = (manifest.step_program(runtime, "plain", sizes, config.batch) for runtime in manifest.programs)
    free = config.privacy is None and config.secure is None and config.keep_best is None
    return msgspec.structs.replace(config, collect_statistics=True) if free and all(steps) else config


def drops_units(method: Method, layout: Layout) -> bool:
    """Whether devices leave out units at the method's rates, which shifts the statistics that training moves.

    See Li et al., 2019, *Understanding the Disharmony between Dropout and Batch Normalization by Variance Shift*.
    """
    tiers = range(method.tiers)
    return isinstance(method, DropoutMethod) and any(
        method.dropout(tier) and method.counts(layout, tier) != layout.sizes for tier in tiers
    )


def widths_asked(method: Method, manifest: Manifest, tiers: Mapping[str, int]) -> dict[str, int]:
    """The width (thousandths) whose statistics each client is asked for, given the tier of each.

    Its own tier's where BatchNorm has statistics for each width. Where it has one set for all, they belong to the
    widest model there is, and only clients that can run that are asked.
    """
    widths = {client: evaluated_width(method, tier) for client, tier in tiers.items()}
    if manifest.statistic_widths:
        return widths
    widest = max(widths.values(), default=0)
    return {client: width for client, width in widths.items() if width == widest}


def collect_statistics(
    round: int,
    *,
    config: RunConfig,
    method: Method,
    manifest: Manifest,
    model: GlobalModel,
    fleet: Fleet,
    tiers: Tiers,
) -> dict[int, int]:
    """Ask every device that is there for statistics of ``model`` after its last ``round``, and give the model them.

    Returns
    -------
    How many samples are behind the statistics of each width (thousandths).
    """
    current, registry = StatisticsRound(round, manifest=manifest, bounds=bounds_of(config)), fleet.registry
    ref = fleet.offer_model(model.frame())
    current.tiers = {client: tiers.of(client, registry[client].profile) for client in registry.present()}
    for client, width in widths_asked(method, manifest, current.tiers).items():
        changes = fleet.changes_for(client, model)
        current.tasks[client] = CollectStatistics(
            run=config.run,
            round=round,
            model=ref,
            width=width,
            batch=config.batch,
            seed=config.seed,
            factor=width_factor(method, manifest, width),
            since=round - len(changes or ()),
            changes=changes,
        )
    asked = len(current.tasks)
    fleet.poll(current, deadline=config.deadline, gone_after=config.gone_after)
    model.weights = current.combined(model.weights)
    level = logging.INFO if current.frames else logging.ERROR
    _log.log(level, "asked %d devices for BatchNorm's statistics, and %d answered", asked, len(current.frames))
    return current.samples()
