"""Devices that take part in secure aggregation in this process: real keys, shares and masks, and no network."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from broker.poll import Poll
from broker.secure_aggregation.polls import MaskedPoll
from edge_fl.core.content import Ref, ref_of
from edge_fl.core.errors import FrameError
from edge_fl.secure_aggregation.participant import Participant
from edge_fl.wire.messages import (
    PROTOCOL,
    AggregationRequest,
    Answer,
    MakeKeys,
    Offer,
    Register,
    SendMasked,
    ShareKeys,
    Unmask,
    encode_message,
)

__all__ = ["Participants"]

_PROFILE = Register(PROTOCOL, "simulated", "onnx", samples=1)


class Participants:
    """What an aggregator asks in place of a fleet: each request is answered at once, but by those who have left.

    Parameters
    ----------
    members
        The devices' parts, by client.
    leaves
        Who answers nothing, of a kind of request and an attempt.

    Attributes
    ----------
    sent, received
        Bytes by client: of what it said, and of what it was told.
    refused
        What devices, or the coordinator, refused.
    """

    def __init__(
        self,
        members: Mapping[str, Participant],
        leaves: Callable[[type[AggregationRequest], int], Collection[str]] = lambda _kind, _attempt: (),
    ) -> None:
        self.members, self.leaves = members, leaves
        self.sent, self.received = Counter[str](), Counter[str]()
        self.refused: list[FrameError] = []
        self._contents: dict[str, bytes] = {}

    def offer_changes(self, frames: Sequence[bytes]) -> tuple[Ref, ...]:
        """Let members have these contents."""
        refs = tuple(ref_of(frame) for frame in frames)
        self._contents |= {ref.digest: frame for ref, frame in zip(refs, frames, strict=True)}
        return refs

    def poll(self, current: Poll[Any, Any], *, deadline: float, gone_after: float) -> None:
        """Ask the clients of ``current``, once each."""
        del deadline, gone_after
        for client, request in current.tasks.items():
            self.received[client] += len(encode_message(request))
            if client in self.leaves(type(request), request.attempt):
                continue
            try:
                self.ask(current, client, request)
            except FrameError as error:
                self.refused.append(error)
                current.excused.add(client)
        current.closed = True

    def ask(self, current: Poll[Any, Any], client: str, request: AggregationRequest) -> None:
        """Have one client answer; raises FrameError where it refuses, or is refused."""
        device = self.members[client]
        if isinstance(request, SendMasked):
            assert isinstance(current, MaskedPoll)
            content = device.masked(request.attempt, request.sealed)
            offer = Offer(request.run, request.round, ref_of(content), request.attempt)
            current.check(client, offer, _PROFILE)
            current.add(client, content)
            current.answers[client] = offer
            self.sent[client] += len(content) + len(encode_message(offer))
            return
        answer = self.answer(client, request)
        self.sent[client] += len(encode_message(answer))
        current.take(client, answer, _PROFILE)

    def answer(self, client: str, request: MakeKeys | ShareKeys | Unmask) -> Answer:
        """What a client says to a request."""
        device = self.members[client]
        match request:
            case MakeKeys(attempt=attempt):
                return device.keys(attempt)
            case ShareKeys(attempt=attempt, roster=roster):
                content = self._contents[roster.digest]
                self.received[client] += len(content)
                return device.shares(attempt, content)
            case Unmask(attempt=attempt, survivors=survivors):
                return device.unmask(attempt, survivors)
