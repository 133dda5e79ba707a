"""Offered updates on their way in: so many at a time as memory is set aside for, the others in turn."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from edge_fl.transport.transfer import Fetcher
from edge_fl.wire.messages import Ref, Want

__all__ = ["Uploads"]

_BUDGET = 64 << 20  # bytes of all updates that are fetched at a time; at least one is, however large
_PATIENCE = 5.0  # seconds without a chunk after which an upload makes room for one that waits


@dataclass
class _Upload:
    """One device's update; ``heard`` is when a chunk of it came last, or when it was begun."""

    ref: Ref
    fetcher: Fetcher
    heard: float


class Uploads:
    """What is being fetched from devices, one update each.

    Only as many are asked for at a time as fit the budget: what all devices of a round send at once would have to be
    held at once. The others wait in the order of their offers, and whoever falls silent goes to the end of that line.
    What has arrived of it is kept beside the budget: a slow link is not to carry it twice.

    Parameters
    ----------
    send
        Publishes a Want to a device.
    budget
        Bytes of the updates that may be under way at a time.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        send: Callable[[str, Want], None],
        *,
        budget: int = _BUDGET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._budget, self._clock = send, budget, clock
        self._active: dict[str, _Upload] = {}
        self._line: dict[str, _Upload] = {}
        self._begun = 0  # bytes of the active ones

    def offer(self, client: str, ref: Ref) -> None:
        """Fetch this update when its turn comes, in place of any other of the client; an offer repeated is none."""
        held = self._find(client)
        if held is None or held.ref != ref:
            self.drop(client)
            fetcher = Fetcher(lambda want: self._send(client, want), clock=self._clock)
            self._line[client] = _Upload(ref, fetcher, self._clock())
            self._begin()

    def chunk(self, client: str, digest: str, index: int, payload: bytes) -> bytes | None:
        """Take a chunk in; returns the update once it is whole. Raises FrameError as ``Fetcher.chunk`` does."""
        upload = self._find(client)
        if upload is None:
            return None
        content = upload.fetcher.chunk(digest, index, payload)
        upload.heard = self._clock()
        if content is not None:
            self.drop(client)
            self._begin()
        return content

    def drop(self, client: str) -> None:
        """Forget the client's update, whatever has arrived of it."""
        self._line.pop(client, None)
        upload = self._active.pop(client, None)
        if upload is not None:
            self._begun -= upload.ref.size

    def clear(self) -> None:
        """Forget all of them."""
        self._active.clear()
        self._line.clear()
        self._begun = 0

    def resume(self) -> None:
        """After a reconnect: ask at once for everything still missing of those under way."""
        for upload in self._active.values():
            upload.fetcher.resume()

    def tick(self) -> None:
        """Ask again for what has stalled, and let those who wait take the place of the silent."""
        now = self._clock()
        for client, upload in list(self._active.items()):
            if self._line and now - upload.heard > _PATIENCE:
                self.drop(client)
                self._line[client] = upload
            else:
                upload.fetcher.tick()
        self._begin()

    def _find(self, client: str) -> _Upload | None:
        return self._active.get(client) or self._line.get(client)

    def _begin(self) -> None:
        while self._line:
            client, upload = next(iter(self._line.items()))
            if self._active and self._begun + upload.ref.size > self._budget:
                return
            self._active[client] = self._line.pop(client)
            self._begun += upload.ref.size
            upload.heard = self._clock()
            upload.fetcher.resume()  # where it was begun before
            upload.fetcher.want(upload.ref)
