"""Masked updates on their way in: each is fetched in chunks, added to its cohort's sum, and acknowledged."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.update_file import Place, UpdateFile
from broker.uploads import Uploads
from edge_fl.core.content import Missing, Ref
from edge_fl.core.errors import FrameError
from edge_fl.wire.messages import Offer, Register, ToDevice, Verdict, Want

if TYPE_CHECKING:
    from broker.secure_aggregation.polls import MaskedPoll

__all__ = ["MaskedUploads"]


class MaskedUploads:
    """Fetches what the clients of one poll offer.

    Parameters
    ----------
    poll
        Says whose updates are wanted, and takes them.
    file
        Room for one update of each.
    send
        Publishes a message to a client.
    """

    def __init__(self, poll: "MaskedPoll", file: UpdateFile, send: Callable[[str, ToDevice], None]) -> None:
        self._poll, self._file, self._send = poll, file, send
        self._offers: dict[str, Offer] = {}
        self._uploads = Uploads(self._want, self._place)

    def consider(self, client: str, offer: Offer, profile: Register) -> None:
        """Fetch an offered update, or say again what became of it; raises FrameError where it has no place.

        Whoever offers what cannot be is waited for no longer.
        """
        poll = self._poll
        if poll.answers.get(client) == offer:
            self._send(client, _taken(offer))
        elif offer.attempt != poll.attempt or offer.round != poll.number or not poll.awaits(client):
            raise FrameError("late", f"Nobody waits for a masked update in attempt {offer.attempt}.")
        else:
            try:
                poll.check(client, offer, profile)
            except FrameError:
                poll.excused.add(client)
                raise
            self._offers[client] = offer
            self._uploads.offer(client, offer.update)

    def chunk(self, client: str, digest: str, index: int, payload: bytes) -> None:
        """Take a chunk in, and add the update once it is whole; raises FrameError as ``Fetcher.chunk`` does."""
        content, offer = self._uploads.chunk(client, digest, index, payload), self._offers.get(client)
        if content is None or offer is None or not self._poll.awaits(client):
            return
        self._poll.add(client, content)
        self._poll.answers[client] = offer
        self._send(client, _taken(offer))

    def resume(self) -> None:
        """After a reconnect: ask at once for what is missing."""
        self._uploads.resume()

    def tick(self) -> None:
        """Ask again for what has stalled."""
        self._uploads.tick()

    def close(self) -> None:
        """Take no more."""
        self._uploads.clear()
        self._file.close()

    def _want(self, client: str, missing: Missing) -> None:
        self._send(client, Want(*missing))

    def _place(self, client: str, ref: Ref) -> Place:
        return self._file.place(client, ref.size)


def _taken(offer: Offer) -> Verdict:
    return Verdict(offer.run, offer.round, offer.update.digest, accepted=True)
