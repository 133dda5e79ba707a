"""The live view of a run in a terminal, and the plain one elsewhere."""

import heapq
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from broker.observer import Observer
from broker.summary import size_text
from edge_fl.metrics.text import clipped_text, loss_text, scores_text
from edge_fl.runs.config import RunConfig, protection_text
from edge_fl.runs.metrics import RoundMetrics, TierScore
from edge_fl.wire.messages import Register

__all__ = ["LiveView", "PlainView", "view"]

_COLOURS = {
    "training": "yellow",
    "evaluating": "yellow",
    "collecting": "yellow",
    "aggregating": "yellow",
    "accepted": "green",
    "evaluated": "green",
    "collected": "green",
    "aggregated": "green",
    "late": "red",
    "rejected": "red",
    "failed": "red",
    "declined": "red",
    "gone": "red",
}
_LINES = 40  # devices shown at the most: drawing a thousand takes longer than the time until the next picture
_ROUNDS = 5  # the time that is left is told by so many rounds
_NAMED = 10  # clients named in a sentence, at the most
_POLLS = ("evaluating", "collecting", "aggregating")  # what devices are at that are asked after they trained
_FIRST = ("rejected", "failed", "gone", "late", "training", *_POLLS)  # shown before others, where not all are


@contextmanager
def view(console: Console, *, live: bool = True, devices: bool = True) -> Iterator[Observer]:
    """The live view while the context lasts where ``console`` is a terminal and ``live``; else the plain one.

    The latter has a line for all that ``devices`` do, if they are asked for.
    """
    if not (live and console.is_terminal):
        yield PlainView(console, devices=devices)
        return
    with LiveView(console) as observer:
        yield observer


class PlainView(Observer):
    """A line a round, for logs and pipes, and one for each thing that happens to a device.

    Parameters
    ----------
    console
        Where to.
    devices
        Whether devices have lines.
    """

    def __init__(self, console: Console, *, devices: bool = False) -> None:
        self._console, self._devices = console, devices
        self._wanted = 0
        self._there: set[str] = set()

    def started(self, config: RunConfig, dense_bytes: int, finished: Sequence[RoundMetrics] = ()) -> None:
        """Say that devices may come."""
        self._wanted = max(config.clients_per_round, config.min_clients)
        done = f", {len(finished)} of them done" if finished else ""
        asked = f"{config.rounds} rounds of {_counted(config.clients_per_round, 'client')}"
        self._say(f"run {config.run}: {config.method}, {asked}{protection_text(config)}{done}")

    def begins_with(self, scores: Mapping[str, float], loss: float) -> None:
        """Say what training begins with."""
        parts = [scores_text(scores), loss_text(loss, None)]
        self._say(f"before round 1  {'  '.join(filter(None, parts))}")

    def registered(self, client: str, profile: Register) -> None:
        """Say who is in, and how many are."""
        self._there.add(client)
        self._tell(f"{client} registered: {profile.runtime}, tier {profile.tier}, {profile.samples} samples")

    def device(self, client: str, status: str) -> None:
        """Say what it is at."""
        if status == "gone":
            self._there.discard(client)
        self._tell(f"{client}: {status}")

    def _tell(self, line: str) -> None:
        if self._devices:
            here = f"  ({len(self._there)} of {self._wanted} are here)" if len(self._there) < self._wanted else ""
            self._say(line + here)

    def round_started(self, number: int, selected: list[str]) -> None:
        """Say how many are asked."""
        if self._devices:
            self._say(f"round {number}: asked {len(selected)}")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def rejected(self, client: str, code: str, reason: str, times: int) -> None:
        """Tell of it at once."""
        often = f", {times} times" if times > 1 else ""
        self._say(f"rejected {client or 'a message'} ({code}{often}): {reason}")

    def round_closed(self, metrics: RoundMetrics) -> None:
        """Print the round."""
        self._say(round_line(metrics))


class LiveView(Observer):
    """A table with a line a device, for as many as fit, redrawn in place.

    Parameters
    ----------
    console
        A terminal.
    """

    def __init__(self, console: Console) -> None:
        self._config: RunConfig | None = None
        self._dense = 0
        self._number = 0
        self._seconds: deque[float] = deque(maxlen=_ROUNDS)  # of the last rounds
        self._closed: RoundMetrics | None = None
        self._scores: dict[str, float] = {}
        self._loss: float | None = None
        self._on_devices: dict[int, TierScore] = {}
        self._up = self._down = 0
        self._devices: dict[str, tuple[Register, str]] = {}
        self._last: dict[str, int] = {}
        self._tiers: dict[str, int] = {}
        self._rejections = 0
        self._asked: list[str] = []
        self._poll = ""
        self._until = 0.0
        # Last: it asks for the first picture at once.
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render)

    def __enter__(self) -> "LiveView":
        """Take over the terminal."""
        self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Leave the last picture standing."""
        self._live.stop()

    def started(self, config: RunConfig, dense_bytes: int, finished: Sequence[RoundMetrics] = ()) -> None:
        """Take the run's head line in, and what it came to so far."""
        self._config, self._dense = config, dense_bytes
        for metrics in finished:
            self.round_closed(metrics)

    def begins_with(self, scores: Mapping[str, float], loss: float) -> None:
        """Show what training begins with."""
        self._scores, self._loss = dict(scores), loss

    def registered(self, client: str, profile: Register) -> None:
        """Give the device a line."""
        _, status = self._devices.get(client, (profile, "idle"))
        self._devices[client] = (profile, "idle" if status == "gone" else status)

    def device(self, client: str, status: str) -> None:
        """Change its status; who is asked for something else than others were before ends the waiting for those."""
        if status in _POLLS and status != self._poll:
            self._end_poll()
            self._poll = status
        if client in self._devices:
            self._devices[client] = (self._devices[client][0], status)

    def rejected(self, client: str, code: str, reason: str, times: int) -> None:
        """Count it."""
        self._rejections += times

    def round_started(self, number: int, selected: list[str]) -> None:
        """Show the round under way."""
        self._number, self._asked, self._until = number, selected, time.monotonic() + self._deadline()

    def round_closed(self, metrics: RoundMetrics) -> None:
        """Show what it gave."""
        self._closed = metrics
        self._seconds.append(metrics.seconds)
        self._end_poll()
        if metrics.scores or metrics.on_devices:
            self._scores, self._on_devices = metrics.scores, metrics.on_devices
        if metrics.loss is not None:
            self._loss = metrics.loss
        self._up += sum(metrics.uplink.values())
        self._down += sum(metrics.downlink.values())
        self._last.update(metrics.uplink)
        self._tiers.update(metrics.tiers)

    def _end_poll(self) -> None:
        """Who has not answered by now is waited for no longer."""
        for client in self._polled():
            self._devices[client] = (self._devices[client][0], "late")
        self._poll = ""

    def _polled(self) -> list[str]:
        """Who is to answer what is asked between rounds."""
        return [client for client, (_, status) in self._devices.items() if status == self._poll]

    def _render(self) -> Group:
        return Group(self._head(), self._table())

    def _head(self) -> Text:
        if self._config is None:
            return Text("waiting for the coordinator")
        scores = (scores_text(self._scores) + _on_devices(self._on_devices)).strip() or "not scored yet"
        if not self._number:
            present = sum(status != "gone" for _, status in self._devices.values())
            return Text(f"{self._config.method}: {present} of {self._config.clients_per_round} devices are here")
        return Text(
            f"{self._config.method}{protection_text(self._config)}  round {self._number}/{self._config.rounds}"
            f"{self._left()}  {scores}  {self._losses()}"
            f"{self._spent()}up {size_text(self._up)}  down {size_text(self._down)}  rejected {self._rejections}\n"
            f"{self._waiting()}"
        )

    def _losses(self) -> str:
        trained = None if self._closed is None else self._closed.train_loss
        return "".join(f"{loss}  " for loss in _losses(self._loss, trained))

    def _spent(self) -> str:
        spent = None if self._closed is None else self._closed.privacy
        return "" if spent is None else f"{spent.text}  "

    def _left(self) -> str:
        """How long the rest will take, if it goes on like this."""
        if not self._seconds or self._config is None:
            return ""
        seconds = (self._config.rounds + 1 - self._number) * sum(self._seconds) / len(self._seconds)
        return f" (about {seconds / 60:.0f} min left)" if seconds > 90 else f" (about {seconds:.0f} s left)"

    def _waiting(self) -> str:
        """Whom the round waits for and how long it may, or who is to answer what, and whom the last one did without."""
        missing = [client for client in self._asked if self._status(client) in ("training", "gone")]
        left = max(0.0, self._until - time.monotonic())
        lines = [f"waiting for {len(missing)} of {len(self._asked)}, at most {left:.0f} s"] if missing else []
        if polled := self._polled():
            lines = [f"{self._poll}: waiting for {_named(polled)}"]
        if self._closed is not None and self._closed.excused:
            lines.append(f"round {self._closed.round} went without {_named(self._closed.excused)}")
        if self._closed is not None and self._closed.clipped:
            lines.append(f"round {self._closed.round}: {clipped_text(self._closed.clipped)}")
        return "; ".join(lines)

    def _status(self, client: str) -> str:
        return self._devices[client][1] if client in self._devices else ""

    def _deadline(self) -> float:
        return 0.0 if self._config is None else self._config.deadline

    def _table(self) -> Table:
        table = Table("device", "tier", "runtime", "status", "last update", "of dense")
        shown = heapq.nsmallest(
            _LINES, list(self._devices), key=lambda c: (self._status(c) not in _FIRST, _natural(c))
        )
        for client in sorted(shown, key=_natural):
            profile, status = self._devices[client]
            size = self._last.get(client)
            table.add_row(
                client,
                str(self._tiers.get(client, profile.tier)),
                profile.runtime,
                Text(status, style=_COLOURS.get(status, "")),
                "" if size is None else size_text(size),
                "" if size is None else f"{size / self._dense:.0%}",
            )
        if len(self._devices) > len(shown):
            table.add_row(f"and {len(self._devices) - len(shown)} more")
        return table


def _natural(client: str) -> list[tuple[int, str]]:
    """Orders ``client-2`` before ``client-10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", client)]


def _named(clients: Iterable[str]) -> str:
    """Their ids, in order, but not hundreds of them."""
    ids = sorted(clients, key=_natural)
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


def _on_devices(scores: Mapping[int, TierScore]) -> str:
    """The scores that each tier's devices found, where any were asked."""
    tiers = "; ".join(f"{scores_text(score.scores)} in tier {tier}" for tier, score in scores.items())
    return f" (on devices {tiers})" if tiers else ""


def _losses(loss: float | None, train_loss: float | None) -> list[str]:
    """Both losses, as far as there are any."""
    return [text for text in (loss_text(loss, None), loss_text(None, train_loss)) if text]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def round_line(metrics: RoundMetrics) -> str:
    """One round in one line."""
    up, down = sum(metrics.uplink.values()), sum(metrics.downlink.values())
    excused = f"  without {_named(metrics.excused)}" if metrics.excused else ""
    clipped = f"  {clipped_text(metrics.clipped)}" if metrics.clipped else ""
    left_out = f"  {metrics.left_out:.2%} of entries left out" if metrics.left_out else ""
    found = scores_text(metrics.scores) + _on_devices(metrics.on_devices)
    spent = "" if metrics.privacy is None else metrics.privacy.text
    parts = [found, *_losses(metrics.loss, metrics.train_loss), spent]
    score = "".join(f"{part}  " for part in parts if part)
    return (
        f"round {metrics.round:>3}  {score}"
        f"{_counted(len(metrics.uplink), 'update')}  up {size_text(up)}  down {size_text(down)}  "
        f"{metrics.seconds:.1f} s{excused}{clipped}{left_out}"
    )
