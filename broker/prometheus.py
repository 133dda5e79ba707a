"""A run's figures for Prometheus, over HTTP."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from broker.observer import Observer
from edge_fl.core.errors import ConfigError, PortError
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics, TierScore
from edge_fl.wire.messages import Register

__all__ = ["PrometheusMetrics", "metrics_server"]


class PrometheusMetrics(Observer):
    """Counts what happens, from when this process began; clients have no series of their own, for there may be many.

    Parameters
    ----------
    registry
        What is scraped.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            made = Gauge(f"edge_fl_{name}", text, registry=registry)
            made.set(math.nan)  # which is what is known of it so far
            return made

        self._gauge = gauge

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"edge_fl_{name}", text, labels, registry=registry)

        self._rounds = gauge("rounds", "Rounds that the run is to have.")
        self._round = gauge("round", "The last round that was closed.")
        self._seconds = gauge("round_seconds", "How long that round took.")
        self._scores = Gauge("edge_fl_score", "Scores on held-out data, by name.", ["score"], registry=registry)
        self._loss = gauge("loss", "Mean loss on held-out data.")
        self._on_devices = {
            field: Gauge(f"edge_fl_device_{field}", f"{text} that devices hold out.", ["tier"], registry=registry)
            for field, text in (
                ("loss", "Mean loss on the samples"),
                ("samples", "How many samples were evaluated, of those"),
            )
        }
        self._device_scores = Gauge(
            "edge_fl_device_score",
            "Scores on samples that devices hold out.",
            ["tier", "score"],
            registry=registry,
        )
        self._train_loss = gauge("train_loss", "Mean loss of the clients in training.")
        self._epsilon: Gauge | None = None  # of a private run
        self._devices = gauge("devices", "Devices that are there.")
        self._asked = gauge("asked", "Devices asked in the round under way, in its newest attempt.")
        self._events = counter("device_events", "What devices came to: training, accepted, rejected ...", "status")
        self._rejections = counter("rejections", "Messages and updates turned away.", "code")
        self._excused = counter("excused", "Devices that rounds closed without.")
        self._clipped = counter("clipped", "Updates that the norm bound scaled down.")
        self._left_out = gauge("left_out", "Share of entries in rows that too few devices of a cohort hold.")
        self._up = counter("uplink_bytes", "Bytes of accepted updates.")
        self._down = counter("downlink_bytes", "Bytes of content sent to devices.")
        self._present: set[str] = set()
        self._devices.set(0)

    def started(self, config: RunConfig, dense_bytes: int, finished: Sequence[RoundMetrics] = ()) -> None:
        """Tell how far it is to go, and what came to pass before."""
        self._rounds.set(config.rounds)
        if config.privacy is not None:
            self._epsilon = self._gauge(
                "epsilon", "What all rounds cost in differential privacy, at the run's delta."
            )
        for metrics in finished:
            self.round_closed(metrics)

    def registered(self, client: str, profile: Register) -> None:
        """Count it in."""
        self._present.add(client)
        self._devices.set(len(self._present))

    def device(self, client: str, status: str) -> None:
        """Count the event, and the client out if it is gone."""
        self._events.labels(status).inc()
        if status == "gone":
            self._present.discard(client)
            self._devices.set(len(self._present))

    def rejected(self, client: str, code: str, reason: str, times: int) -> None:
        """Count them by code."""
        self._rejections.labels(code).inc(times)

    def round_started(self, number: int, selected: list[str]) -> None:
        """Tell how many are asked."""
        self._asked.set(len(selected))

    def round_closed(self, metrics: RoundMetrics) -> None:
        """Tell what it gave."""
        self._round.set(metrics.round)
        self._seconds.set(metrics.seconds)
        if metrics.loss is not None:
            self._loss.set(metrics.loss)
        for name, value in metrics.scores.items():
            self._scores.labels(name).set(value)
        if metrics.loss is not None or metrics.on_devices:
            self._tell_tiers(metrics.on_devices)
        if metrics.train_loss is not None:
            self._train_loss.set(metrics.train_loss)
        spent = None if metrics.privacy is None else metrics.privacy.epsilon
        if self._epsilon is not None and spent is not None:
            self._epsilon.set(spent)
        self._excused.inc(len(metrics.excused))
        self._clipped.inc(len(metrics.clipped))
        self._left_out.set(metrics.left_out)
        self._up.inc(sum(metrics.uplink.values()))
        self._down.inc(sum(metrics.downlink.values()))

    def _tell_tiers(self, scores: Mapping[int, TierScore]) -> None:
        """What was found before, by tiers that nobody answered for now, is no longer known."""
        for field, tiers in self._on_devices.items():
            tiers.clear()
            for tier, score in scores.items():
                tiers.labels(tier).set(getattr(score, field))
        self._device_scores.clear()
        for tier, score in scores.items():
            for name, value in score.scores.items():
                self._device_scores.labels(tier, name).set(value)


@contextmanager
def metrics_server(address: str) -> Iterator[Observer]:
    """Serve ``http://HOST:PORT/metrics`` while the context lasts; ``address`` is ``HOST:PORT``.

    Raises
    ------
    ConfigError
        When that is no such address.
    PortError
        When it cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"Metrics are served on HOST:PORT, such as 127.0.0.1:9464, not on '{address}'.")
    registry = CollectorRegistry()
    observer = PrometheusMetrics(registry)
    try:
        server, thread = start_http_server(int(port), host, registry)
    except OSError as error:
        raise PortError(f"Metrics cannot be served on {address} ({error.strerror}); choose another.") from error
    try:
        yield observer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
