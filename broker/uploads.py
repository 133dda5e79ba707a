"""Offered updates on their way in: as many at a time as may come at once, the others in turn."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from edge_fl.core.content import CHUNK_SIZE, Missing, Ref
from edge_fl.transport.transfer import Fetcher, Parts

__all__ = ["Uploads"]

_WINDOW = 8  # chunks of an update that are asked for at a time
_BUDGET = 64 << 20  # bytes that are asked for at a time of all updates
_PATIENCE = 5.0  # seconds without a chunk after which an upload makes room for one that waits


@dataclass
class _Upload:
    """One device's update; ``heard`` is when a chunk of it came last, or when it was begun."""

    ref: Ref
    fetcher: Fetcher
    heard: float

    @property
    def share(self) -> int:
        """Bytes of it that are asked for at a time, at most."""
        return min(self.ref.size, _WINDOW * CHUNK_SIZE)


class Uploads:
    """What is being fetched from devices, one update each.

    Only as much is asked for at a time as fits the budget, since it may all come at once. The others wait in the order
    of their offers, and whoever falls silent goes to the end of that line. What has arrived of it is kept: a slow link
    is not to carry it twice.

    Parameters
    ----------
    send
        Asks a device for chunks.
    keep
        Makes a place for what comes of a device's update.
    budget
        Bytes that may be on their way at a time.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        send: Callable[[str, Missing], None],
        keep: Callable[[str, Ref], Parts],
        *,
        budget: int = _BUDGET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._keep, self._budget, self._clock = send, keep, budget, clock
        self._active: dict[str, _Upload] = {}
        self._line: dict[str, _Upload] = {}
        self._begun = 0  # bytes that the active ones ask for

    def offer(self, client: str, ref: Ref) -> None:
        """Fetch this update when its turn comes, in place of any other of the client; an offer repeated is none."""
        held = self._find(client)
        if held is None or held.ref != ref:
            self.drop(client)
            fetcher = Fetcher(lambda want: self._send(client, want), window=_WINDOW, clock=self._clock)
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
        return None if content is None else bytes(content)

    def drop(self, client: str) -> None:
        """Forget the client's update, whatever has arrived of it."""
        self._line.pop(client, None)
        upload = self._active.pop(client, None)
        if upload is not None:
            self._begun -= upload.share

    def clear(self, besides: Collection[str] = ()) -> None:
        """Forget all of them, but for those ``besides``."""
        for client in self._active.keys() | self._line.keys():
            if client not in besides:
                self.drop(client)

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
            if self._active and self._begun + upload.share > self._budget:
                return
            self._active[client] = self._line.pop(client)
            self._begun += upload.share
            upload.heard = self._clock()
            upload.fetcher.resume()  # where it was begun before
            upload.fetcher.want(upload.ref, self._keep(client, upload.ref))
