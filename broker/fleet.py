"""What a coordinator needs of whoever trains: devices behind a broker, or the clients of a simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker.final_model import FinalModel
from broker.model import GlobalModel
from broker.poll import Poll
from broker.registry import Registry
from broker.rounds import Round
from edge_fl.core.content import Ref
from edge_fl.core.server_half import State
from edge_fl.wire.messages import Task

__all__ = ["Counted", "Fleet"]


@dataclass(frozen=True)
class Counted:
    """Bytes of content ``sent`` by client, and how many messages and updates were turned away, by code."""

    sent: dict[str, int]
    rejections: dict[str, int]


class Fleet(Protocol):
    """Clients, the way to them, and their clock.

    A coordinator opens a round, asks clients, and calls :meth:`pump` until enough of them have answered: only there
    does time pass. What clients answer is checked here, and noted in the round. After the round is closed the
    coordinator may ask a :class:`~broker.poll.Poll`. At the end it bids farewell.

    Attributes
    ----------
    registry
        The clients known.
    returning
        Until when clients that the run knew when it was broken off may still come back; minus infinity for a new run.
    outlives
        Whether clients go on when this process dies: then the record has what they are asked before they are.
    timed
        Whether the seconds that clients take mean anything: then the record has them.
    """

    registry: Registry
    returning: float
    outlives: bool
    timed: bool

    def now(self) -> float:
        """Seconds on the clients' clock, which never goes back."""
        ...

    def open_round(self, current: Round, model: bytes) -> Ref:
        """Take updates of ``current`` from now on, and give out its ``model`` frame."""
        ...

    def offer_model(self, model: bytes) -> Ref:
        """Give out this ``model`` frame and no other."""
        ...

    def offer_changes(self, frames: Sequence[bytes]) -> tuple[Ref, ...]:
        """Give out the changes that lead to the round's model, too."""
        ...

    def changes_for(self, client: str, model: GlobalModel) -> tuple[Ref, ...] | None:
        """What leads to ``model`` from the one that the client holds; None where models travel whole."""
        ...

    def ask(self, tasks: Mapping[str, Task]) -> None:
        """Have these clients train; the round has their tasks, and where clients outlive this process the record."""
        ...

    def pump(self, until: float = ...) -> None:
        """Take in what comes next; return when something has, or soon, and on a virtual clock by ``until``."""
        ...

    def close_round(self) -> None:
        """Take no more updates; those of clients that are still awaited count once a round is opened again."""
        ...

    def poll(self, current: Poll[Any, Any], *, deadline: float, gone_after: float) -> None:
        """Ask the clients of ``current``, and wait: ``deadline`` seconds at most, and not for who is gone."""
        ...

    def counted(self) -> Counted:
        """What was counted since the last call."""
        ...

    def recount(self, rejections: Mapping[str, int]) -> None:
        """Count what was turned away, by code, before the round was broken off."""
        ...

    def states(self) -> Mapping[str, State]:
        """What methods remember of clients that live here, as the round's updates left it."""
        ...

    def state_dict(self) -> State:
        """What a run that is continued needs to know of the fleet after the round; nothing where it outlives."""
        ...

    def farewell(self, rounds: int, final: FinalModel) -> None:
        """Tell every client that the run is over, and send the ``final`` model to those that keep it."""
        ...
