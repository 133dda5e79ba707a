"""A run as log lines, one an event, for whoever reads logs by program."""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from broker.observer import Observer
from edge_fl.core.log import log_fields
from edge_fl.metrics.text import clipped_text, loss_text, scores_text
from edge_fl.runs.config import RunConfig, protection_text
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.wire.messages import Register

__all__ = ["LogView"]

_log = logging.getLogger(__name__)


class LogView(Observer):
    """Logs what happens."""

    def __init__(self) -> None:
        self._run, self._round = "", 0

    def started(self, config: RunConfig, dense_bytes: int, finished: Sequence[RoundMetrics] = ()) -> None:
        """The run begins."""
        self._run = config.run
        self._round = len(finished)
        done = f", {self._round} of them done" if finished else ""
        self._say("%s, %d rounds%s%s", config.method, config.rounds, protection_text(config), done)
        if not finished:
            wanted = max(config.clients_per_round, config.min_clients)
            self._say("waiting for %d devices, at most %.0f s", wanted, config.wait, wanted=wanted)

    def begins_with(self, scores: Mapping[str, float], loss: float) -> None:
        """What training begins with."""
        fields = {"scores": dict(scores), "loss": loss}
        self._say("before round 1: %s", scores_text(scores) or loss_text(loss, None), **fields)

    def registered(self, client: str, profile: Register) -> None:
        """A device is in."""
        self._say("%s registered: tier %d, %d samples", client, profile.tier, profile.samples, client=client)

    def device(self, client: str, status: str) -> None:
        """A device's part in the round changed."""
        self._say("%s: %s", client, status, client=client, status=status)

    def rejected(self, client: str, code: str, reason: str, times: int) -> None:
        """Messages or updates were turned away."""
        often = f", {times} times" if times > 1 else ""
        fields = {"client": client, "code": code, "times": times}
        self._say("rejected %s (%s%s): %s", client or "a message", code, often, reason, **fields)

    def round_started(self, number: int, selected: list[str]) -> None:
        """These clients were asked to train."""
        self._round = number
        self._say("round %d: asked %d devices", number, len(selected), devices=len(selected))

    def round_closed(self, metrics: RoundMetrics) -> None:
        """The round is over."""
        figures = {
            "seconds": metrics.seconds,
            "scores": metrics.scores,
            "train_loss": metrics.train_loss,
            "loss": metrics.loss,
            **({} if metrics.privacy is None else {"privacy": msgspec.to_builtins(metrics.privacy)}),
            "uplink": sum(metrics.uplink.values()),
            "downlink": sum(metrics.downlink.values()),
            "left_out": metrics.left_out,
        }
        spent = "" if metrics.privacy is None else metrics.privacy.text
        found = scores_text(metrics.scores) or loss_text(None, metrics.train_loss)
        told = ", ".join(filter(None, [found, spent, f"{len(metrics.uplink)} updates"]))
        self._say("round %d: %s", metrics.round, told, **figures)
        if metrics.clipped:
            text, fields = clipped_text(metrics.clipped), {"clipped": metrics.clipped}
            self._say("round %d: %s", metrics.round, text, **fields)
        for tier, score in metrics.on_devices.items():
            self._say(
                "round %d: tier %d on devices: %s",
                metrics.round,
                tier,
                scores_text(score.scores),
                tier=tier,
                on_devices=msgspec.to_builtins(score),
            )

    def _say(self, text: str, *values: object, **fields: object) -> None:
        with log_fields(run=self._run, round=self._round, **fields):
            _log.info(text, *values)
