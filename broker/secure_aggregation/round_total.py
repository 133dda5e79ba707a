"""A round's sum where updates are summed unseen: by devices, or in a simulation as devices would."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker.secure_aggregation.cohorts import cohorts_of
from broker.secure_aggregation.members import Announced, counted, member_of
from broker.secure_aggregation.totals import CohortSum, SecureTotals
from edge_fl.aggregation.bounds import Bounds, Size
from edge_fl.aggregation.rules import Rule
from edge_fl.aggregation.spool import Spool
from edge_fl.core.layout import Layout, Mode
from edge_fl.methods.capabilities import ClientReport
from edge_fl.runs.config import SecureAggregation
from edge_fl.secure_aggregation.masking import add_update, zeros
from edge_fl.secure_aggregation.roster import Cohort, Member, Roster
from edge_fl.wire.frame import Frame

__all__ = ["Plan", "SecureTotal", "SimulatedTotal"]


@dataclass(frozen=True)
class Plan:
    """How one round of ``run`` is summed: updates of ``layout`` in ``mode``, by ``rule``, within ``bounds``.

    ``seed`` keys who is in which cohort.
    """

    layout: Layout
    mode: Mode
    rule: Rule
    bounds: Bounds
    secure: SecureAggregation
    run: str
    seed: int
    round: int

    def cohorts(self, announced: Sequence[Announced]) -> list[list[str]]:
        """The clients by cohort."""
        tiers = {one.client: one.tier for one in announced}
        return cohorts_of(tiers, size=self.secure.cohort, seed=self.seed, round=self.round)

    def roster(self, members: Sequence[Member], attempt: int) -> Roster:
        """What ``members`` are told of each other; ValueError where they are too few."""
        share = math.ceil(self.secure.threshold * len(members) - 1e-9)  # 0.66 * 50 is a little more than 33
        return Roster(
            run=self.run,
            round=self.round,
            attempt=attempt,
            threshold=max(share, len(members) // 2 + 1),
            holders=self.secure.holders,
            reach=self.secure.reach,
            mode=self.mode,
            members=tuple(members),
        )


class SecureTotal:
    """What devices have summed.

    Parameters
    ----------
    sums
        The cohorts'.
    reports
        What the updates say besides.
    """

    def __init__(self, sums: SecureTotals, reports: Sequence[ClientReport]) -> None:
        self.sums, self.clipped = sums, dict[str, float]()
        self.sizes: Sequence[Size] = ()
        self.told: Sequence[bool] = ()
        self._reports = reports

    @property
    def left_out(self) -> float:
        """The share of entries that too few devices hold."""
        return self.sums.left_out

    def close(self) -> Sequence[ClientReport]:
        """What the server half learns of each update."""
        return self._reports


class SimulatedTotal:
    """Sums updates to the very numbers that devices would: in cohorts, in the ring, and without rows that few hold.

    Masks cancel, so there are none. Updates wait on disk until all are there: what one counts depends on the others.

    Parameters
    ----------
    plan
        How they are summed.
    spool
        Where they wait.
    """

    def __init__(self, plan: Plan, spool: Spool) -> None:
        self._plan, self._spool = plan, spool
        self._waiting: list[tuple[int, Frame, float | None]] = []
        self.clipped: dict[str, float] = {}
        self.sizes: Sequence[Size] = ()
        self.told: Sequence[bool] = ()
        self.sums = SecureTotals(plan.layout, plan.rule, ())

    @property
    def left_out(self) -> float:
        """The share of entries that too few clients hold."""
        return self.sums.left_out

    def add(self, tier: int, update: Frame, seconds: float | None = None) -> None:
        """Add the update of a client of ``tier``."""
        self._spool.append(update.values)
        self._waiting.append((tier, replace(update, values={}), seconds))

    def close(self) -> Sequence[ClientReport]:
        """Sum them; what the server half learns of each update."""
        plan = self._plan
        samples = {frame.header.client: frame.header.samples for _, frame, _ in self._waiting}
        most = counted(samples, plan.bounds)
        announced = {
            frame.header.client: Announced.of(frame, tier=tier, counted=most[frame.header.client], seconds=seconds)
            for tier, frame, seconds in self._waiting
        }
        place = {client: number for number, client in enumerate(announced)}
        sums = []
        for clients in plan.cohorts(list(announced.values())):
            members = [member_of(announced[client], plan.rule) for client in clients]
            cohort, total = Cohort(plan.roster(members, 0), plan.layout), zeros(plan.layout)
            for client in clients:
                add_update(total, cohort, client, self._spool.values(place[client]), clients)
            sums.append(CohortSum(cohort, tuple(clients), tuple(clients), total))
        self.sums = SecureTotals(plan.layout, plan.rule, sums)
        self._spool.close()
        return [one.report for one in announced.values()]
