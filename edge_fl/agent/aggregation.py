"""A device's answers in secure aggregation, and its memory of what it has unmasked."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from edge_fl.core.atomic import write_atomically
from edge_fl.core.content import Ref
from edge_fl.core.errors import RunError, said
from edge_fl.core.layout import Layout
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.identity.signatory import FleetSignatory
from edge_fl.secure_aggregation.keys import check_available
from edge_fl.secure_aggregation.participant import Participant
from edge_fl.secure_aggregation.roster import largest_roster
from edge_fl.training.update import Update
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import Keys, MakeKeys, SendMasked, ShareKeys, Shares, Task, Unmask, Unmasked

__all__ = ["Aggregation"]

_FILE, _RUNS = "unmasked.json", 100


class _Unmasked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last round of each run whose sum the device unmasked, the newest run last."""

    rounds: dict[str, int] = {}


class Aggregation:
    """Holds the update that was announced last, until its cohort's sum is made.

    A device unmasks one sum a round, also after it was started anew. Two sums of a round might differ by one update.

    Parameters
    ----------
    folder
        Keeps which round was unmasked.
    signing
        The device's identity, which signs its keys; None without one.
    holders
        How many devices of a cohort must hold each row at least.
    """

    def __init__(self, folder: Path, signing: Path | None, *, holders: int = 2) -> None:
        self._path, self._signing, self._holders = folder / _FILE, signing, holders
        self._participant: Participant | None = None
        self._layout: Layout | None = None

    def begin(self, task: Task) -> None:
        """Forget the last update.

        Raises RunError where the device has unmasked a sum of the task's round, or cannot know whether it has, and
        ConfigError where it lacks the package cryptography: then it need not train.
        """
        self._participant = None
        if not task.withheld:
            return
        check_available()
        last = self._unmasked().get(task.run, 0)
        if task.round <= last:
            raise RunError(f"This device has unmasked a sum of round {last}, and trains a later one alone.")

    def announce(self, update: Update, layout: Layout) -> None:
        """Hold an update whose values the frame withholds."""
        signatory = None if self._signing is None else FleetSignatory(self._signing)
        frame = decode_frame(update.frame, layout)
        self._participant = Participant(frame, update.withheld, layout, signatory, holders=self._holders)
        self._layout = layout

    def answer(
        self, request: MakeKeys | ShareKeys | Unmask, fetch: Callable[[Ref, int], bytes]
    ) -> Keys | Shares | Unmasked:
        """What the coordinator asks for; ``fetch`` takes a content and the most bytes that it may have.

        Raises FrameError as :class:`~edge_fl.secure_aggregation.participant.Participant` does, and RunError as
        :meth:`masked`.
        """
        participant = self._of(request)
        match request:
            case MakeKeys(attempt=attempt):
                return participant.keys(attempt)
            case ShareKeys(attempt=attempt, roster=roster):
                assert self._layout is not None
                return participant.shares(attempt, fetch(roster, largest_roster(self._layout)))
            case Unmask(attempt=attempt, survivors=survivors):
                answer = participant.unmask(attempt, survivors)
                self._note(request)
                return answer

    def masked(self, request: SendMasked) -> bytes:
        """The masked update; raises RunError where the update is gone, and FrameError as ``Participant.masked``."""
        return self._of(request).masked(request.attempt, request.sealed)

    def _of(self, request: MakeKeys | ShareKeys | SendMasked | Unmask) -> Participant:
        held = self._participant
        if held is None or (held.run, held.round) != (request.run, request.round):
            raise RunError(f"This device holds no update of round {request.round}: it was started anew since.")
        return held

    def _note(self, request: Unmask) -> None:
        rounds = self._unmasked()
        rounds.pop(request.run, None)
        kept = dict([*rounds.items(), (request.run, request.round)][-_RUNS:])
        write_atomically(self._path, msgspec.json.encode(_Unmasked(kept)))

    def _unmasked(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Unmasked).rounds
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as error:
            raise RunError(
                f"'{self._path}' says what this device has unmasked, and cannot be read ({said(error)}): "
                "remove it once no run of secure aggregation goes on."
            ) from error
