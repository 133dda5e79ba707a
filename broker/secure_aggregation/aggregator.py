"""Has the devices of a round sum their updates, so that no single one is seen."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.fleet import Fleet
from broker.poll import Poll
from broker.rounds import Round
from broker.secure_aggregation.members import Announced, counted, member_of
from broker.secure_aggregation.polls import KeysPoll, MaskedPoll, SharesPoll, UnmaskPoll
from broker.secure_aggregation.record import AggregationRecord
from broker.secure_aggregation.round_total import Plan, SecureTotal
from broker.secure_aggregation.totals import CohortSum, SecureTotals
from broker.secure_aggregation.unmasking import Reject, unmasked
from edge_fl.core.errors import FrameError, RunError
from edge_fl.runs.config import RunConfig
from edge_fl.secure_aggregation.keys import Session
from edge_fl.secure_aggregation.roster import Cohort, Member, encode_roster
from edge_fl.secure_aggregation.statement import PublicKeys, Said, statement_of
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import (
    Keys,
    MakeKeys,
    SendMasked,
    ShareKeys,
    Shares,
    Unmask,
    Unmasked,
    encode_message,
)

__all__ = ["SecureAggregator"]

_log = logging.getLogger(__name__)
_ATTEMPTS, _LOST = 3, 3


class SecureAggregator:
    """Asks the devices whose updates were announced for the sum of these, cohort by cohort.

    In each attempt a cohort makes keys, shares its secrets, sends masked updates, and unmasks their sum. Where members
    leave, the others unmask without them. A cohort begins anew, with fresh keys and without those who left, when fewer
    than the threshold are there, or when too few of them still hold a row. Before it asks for unmasking, it notes the
    masked sums on disk: a coordinator that comes back asks for the same.

    Parameters
    ----------
    config
        The run's.
    fleet
        Asks them.
    plan
        How a round is summed, by its number.
    record
        The path of a round's record, by its number.
    check
        Raises FrameError where a client did not sign (certificate, signature, data).
    reject
        Counts a wrong share.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        fleet: Fleet,
        plan: Callable[[int], Plan],
        record: Callable[[int], Path],
        check: Callable[[str, bytes, bytes, bytes], None],
        reject: Reject,
    ) -> None:
        self._config, self._fleet = config, fleet
        self._plan_of, self._record_of, self._check, self._reject = plan, record, check, reject
        self._lost = 0  # rounds in a row without a sum
        self._sizes: Counter[str] = Counter()  # bytes that clients of the round sent besides what they announced

    def total(self, current: Round, took: Mapping[str, float]) -> SecureTotal:
        """The sum of the updates that ``current`` has, and counts no longer those of clients that left.

        Where fewer are left than the round needs, that costs the round: it has no update, and the model stays.

        Raises
        ------
        RunError
            When three rounds in a row came to that.
        StateError
            When the record of the round cannot be read or written.
        """
        plan = self._plan_of(current.number)
        announced = self._announced(current, took, plan)
        record = AggregationRecord(self._record_of(current.number), plan.layout)
        self._sizes.clear()
        noted = record.masked()
        sums = self._unmask(noted, current.number)
        summed = {client for one in noted for client in one.cohort.members}
        waiting = [[c for c in clients if c not in summed] for clients in plan.cohorts(list(announced.values()))]
        for _ in range(_ATTEMPTS):
            waiting = [clients for clients in waiting if len(clients) >= plan.secure.holders]
            if not waiting:
                break
            record.begin(record.attempt + 1)
            masked, waiting = self._masked(waiting, announced, plan, record.attempt)
            if masked:
                record.keep(masked)
            sums += self._unmask(masked, current.number)
        survivors = sorted(client for one in sums for client in one.survivors)
        # What was announced may be lost with this machine's power, but never what was noted to be unmasked.
        if len(survivors) < current.quorum or not announced.keys() >= set(survivors):
            self._lose(current.number, len(survivors), current.quorum)
            sums, survivors = [], []
        else:
            self._lost = 0
        self._settle(current, frozenset(survivors))
        return SecureTotal(
            SecureTotals(plan.layout, plan.rule, sums), [announced[client].report for client in survivors]
        )

    def _announced(self, current: Round, took: Mapping[str, float], plan: Plan) -> dict[str, Announced]:
        frames = {
            client: decode_frame(report.content(), plan.layout)
            for client, report in sorted(current.reports.items())
        }
        most = counted({client: frame.header.samples for client, frame in frames.items()}, plan.bounds)
        return {
            client: Announced.of(
                frame,
                tier=current.parts[client].task.tier,
                counted=most[client],
                seconds=took.get(client),
            )
            for client, frame in frames.items()
        }

    def _masked(
        self, waiting: Sequence[Sequence[str]], announced: Mapping[str, Announced], plan: Plan, attempt: int
    ) -> tuple[list[CohortSum], list[list[str]]]:
        """Sums that are masked and may be unmasked, and the clients of cohorts that have to begin anew."""
        members = self._keys([c for clients in waiting for c in clients], announced, plan, attempt)
        alive = [[client for client in clients if client in members] for clients in waiting]
        going = [clients for clients in alive if len(clients) >= plan.secure.holders]
        rosters = [plan.roster([members[client] for client in clients], attempt) for clients in going]
        cohorts = [Cohort(roster, plan.layout) for roster in rosters]
        shares = self._shares(cohorts, plan, attempt)
        poll = self._sums(cohorts, shares, plan, attempt)
        done, again = list[CohortSum](), list[list[str]]()
        for place, cohort in enumerate(cohorts):
            sharing = tuple(client for client in cohort.members if client in shares)
            survivors = tuple(client for client in sharing if client in poll.answers)
            enough = len(survivors) >= cohort.roster.threshold
            if enough and not _newly_thin(cohort, sharing, survivors):
                done.append(CohortSum(cohort, sharing, survivors, poll.sums[place]))
            else:
                again.append(list(survivors if len(sharing) >= cohort.roster.threshold else sharing))
                _log.warning(
                    "round %d: %d of %d devices of a cohort are left: their sum begins anew",
                    plan.round,
                    len(again[-1]),
                    len(cohort.members),
                )
        return done, again

    def _keys(
        self, clients: Sequence[str], announced: Mapping[str, Announced], plan: Plan, attempt: int
    ) -> dict[str, Member]:

        def signed(client: str, keys: Keys) -> None:
            said = Said.of(announced[client].pattern, announced[client].samples)
            statement = statement_of(
                Session(plan.run, plan.round, attempt),
                client,
                said,
                PublicKeys(keys.encryption, keys.masking, keys.commitment),
            )
            self._check(client, keys.certificate, keys.signature, statement)

        poll = KeysPoll(plan.round, attempt=attempt, signed=signed)
        poll.tasks = {client: MakeKeys(plan.run, plan.round, attempt) for client in clients}
        self._ask(poll)
        return {
            client: member_of(announced[client], plan.rule, keys) for client, keys in sorted(poll.answers.items())
        }

    def _shares(self, cohorts: Sequence[Cohort], plan: Plan, attempt: int) -> dict[str, Shares]:
        contents = [encode_roster(cohort.roster) for cohort in cohorts]
        refs = self._fleet.offer_changes(contents)
        poll = SharesPoll(plan.round, attempt=attempt, cohorts=_by_client(cohorts))
        for cohort, ref in zip(cohorts, refs, strict=True):
            poll.tasks |= {client: ShareKeys(plan.run, plan.round, attempt, ref) for client in cohort.members}
        self._ask(poll)
        return poll.answers

    def _sums(
        self, cohorts: Sequence[Cohort], shares: Mapping[str, Shares], plan: Plan, attempt: int
    ) -> MaskedPoll:
        places = {client: place for place, cohort in enumerate(cohorts) for client in cohort.members}
        poll = MaskedPoll(plan.round, attempt=attempt, cohorts=_by_client(cohorts), places=places)
        for cohort in cohorts:
            sharing = [client for client in cohort.members if client in shares]
            if len(sharing) < cohort.roster.threshold:
                continue
            for client in sharing:
                sealed = {other: shares[other].sealed[client] for other in sharing if other != client}
                poll.tasks[client] = SendMasked(plan.run, plan.round, attempt, sealed)
        self._ask(poll)
        self._sizes.update({client: offer.update.size for client, offer in poll.answers.items()})
        return poll

    def _unmask(self, masked: Sequence[CohortSum], round: int) -> list[CohortSum]:
        """The sums without masks; those that too few survivors unmask are lost, with a warning."""
        sharing = {client: frozenset(one.sharing) for one in masked for client in one.survivors}
        answers: dict[str, Unmasked] = {}
        for number in sorted({one.cohort.roster.attempt for one in masked}):
            poll = UnmaskPoll(round, attempt=number, sharing=sharing)
            for one in masked:
                if one.cohort.roster.attempt == number:
                    request = Unmask(self._config.run, round, number, one.survivors)
                    poll.tasks |= dict.fromkeys(one.survivors, request)
            self._ask(poll)
            answers |= poll.answers
        done = []
        for one in masked:
            given = {client: answers[client].shares for client in one.survivors if client in answers}
            try:
                done.append(
                    unmasked(one.cohort, one.sharing, one.survivors, one.total, given, reject=self._reject)
                )
            except FrameError as error:
                _log.error("round %d: the sum of %d devices is lost: %s", round, len(one.survivors), error)
        return done

    def _ask(self, poll: Poll[Any, Any]) -> None:
        """Have clients answer, and count the bytes of what they say."""
        if poll.tasks:
            self._fleet.poll(poll, deadline=self._config.deadline, gone_after=self._config.gone_after)
        for client, answer in poll.answers.items():
            self._sizes[client] += len(encode_message(answer))

    def _lose(self, round: int, left: int, needed: int) -> None:
        self._lost += 1
        said = f"Secure aggregation of round {round} kept {left} of the {needed} updates that it needs"
        if self._lost >= _LOST:
            raise RunError(f"{said}, as in the {_LOST - 1} rounds before: see why devices leave.")
        _log.error("%s: the model stays as it is", said)

    def _settle(self, current: Round, survivors: frozenset[str]) -> None:
        for client, report in current.reports.items():
            if client in survivors:
                size = report.size + self._sizes.get(client, 0)
                current.parts[client].report = replace(report, size=size)
            else:
                current.lose(client, "its cohort's sum was made without it")


def _by_client(cohorts: Sequence[Cohort]) -> dict[str, Cohort]:
    return {client: cohort for cohort in cohorts for client in cohort.members}


def _newly_thin(cohort: Cohort, sharing: Sequence[str], survivors: Sequence[str]) -> bool:
    """Whether entries are in updates, as enough members held them, of which too few are left."""
    return any(
        (cohort.thin(tensor, survivors) & ~cohort.thin(tensor, sharing)).any() for tensor in cohort.layout.tensors
    )
