"""Asks the devices of one poll at a time, each again until it answers, and takes their answers."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from broker.observer import Observer
from broker.poll import Incoming, Poll
from broker.registry import Registry
from broker.run_folder import RunFolder
from edge_fl.core.errors import FrameError
from edge_fl.wire.messages import Answer, Failed, Offer, ToDevice

__all__ = ["Polling"]


class Polling:
    """The conversation about the newest poll.

    A poll is opened, each of its clients is asked, and asked again until it answers. Most answers are a message. A poll
    that takes updates says where they come in. Once the poll is closed, answers come late.

    Parameters
    ----------
    folder
        That of the run.
    registry
        The devices known.
    observer
        Told what each device is at.
    send
        Publishes a message to a client.
    sent
        Bytes of content published to each client.

    Attributes
    ----------
    current
        The newest poll, open or closed; None before the first.
    incoming
        Where its updates come in; None where it takes none, or is closed.
    """

    def __init__(
        self,
        *,
        folder: RunFolder,
        registry: Registry,
        observer: Observer,
        send: Callable[[str, ToDevice], None],
        sent: Counter[str],
    ) -> None:
        self.current: Poll[Any, Any] | None = None
        self.incoming: Incoming | None = None
        self._folder, self._registry, self._observer = folder, registry, observer
        self._send, self._sent = send, sent

    def open(self, poll: Poll[Any, Any]) -> None:
        """Ask its clients, and take what they answer."""
        self.current, self.incoming = poll, poll.open_incoming(self._folder, self._send)
        for client in poll.tasks:
            self._tell(client, poll.statuses[0])
            self._ask(poll, client)

    def close(self) -> None:
        """Wait for nobody any more."""
        if self.current is not None:
            self.current.closed = True
        if self.incoming is not None:
            self.incoming.close()
            self.incoming = None

    def resume(self) -> None:
        """After a reconnect: ask at once for what is missing."""
        if self.incoming is not None:
            self.incoming.resume()

    def tick(self, overdue: float) -> None:
        """Ask again for what has stalled, and whoever was asked before ``overdue`` (monotonic seconds)."""
        if self.incoming is not None:
            self.incoming.tick()
        if self.current is not None:
            for client in self.current.overdue(overdue):
                self._ask(self.current, client)

    def registered(self, client: str) -> None:
        """Ask a client that is here again, if it is waited for."""
        if self.current is not None and self.current.awaits(client):
            self._ask(self.current, client)

    def take(self, client: str, answer: Answer) -> None:
        """Count an answer; raises FrameError where it has no place, or cannot be."""
        device, poll = self._registry.get(client), self.current
        if device is None:
            raise FrameError("unregistered", "The client is not registered.")
        if poll is None or answer.run != self._folder.run:
            raise FrameError(
                "late", f"Nobody waits for an answer after round {answer.round} of run '{answer.run}'."
            )
        awaited = poll.awaits(client)
        try:
            taken = poll.take(client, answer, device.profile)
        except FrameError:
            if awaited and not poll.awaits(client):
                self._observer.device(client, "rejected")
            raise
        if taken:
            self._tell(client, poll.statuses[1])

    def consider(self, client: str, offer: Offer) -> None:
        """Fetch an update that answers; raises FrameError where nobody waits for it."""
        device = self._registry.get(client)
        if self.incoming is None or device is None or offer.run != self._folder.run:
            raise FrameError("late", f"Nobody waits for a masked update in attempt {offer.attempt}.")
        self.incoming.consider(client, offer, device.profile)

    def fail(self, client: str, failed: Failed) -> bool:
        """Wait no longer for a client that cannot answer; whether it was waited for. FrameError if never asked."""
        poll = self.current
        if poll is None or client not in poll.tasks or failed.round != poll.number:
            raise FrameError("late", f"Nobody waits for what round {failed.round} of run '{failed.run}' came to.")
        awaited = poll.awaits(client)
        if awaited:
            poll.excused.add(client)
        return awaited

    def _ask(self, poll: Poll[Any, Any], client: str) -> None:
        poll.sent_at[client] = time.monotonic()
        self._send(client, poll.tasks[client])
        self._sent[client] += poll.content_in(client)

    def _tell(self, client: str, status: str) -> None:
        if status:
            self._observer.device(client, status)
