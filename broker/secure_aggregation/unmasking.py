"""Takes the masks off a cohort's sum, by the shares that its survivors gave."""

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from broker.secure_aggregation.totals import CohortSum
from edge_fl.core.errors import FrameError
from edge_fl.secure_aggregation.keys import KeyPair, commitment_of
from edge_fl.secure_aggregation.masking import Ring, add_pair, add_seed
from edge_fl.secure_aggregation.roster import Cohort
from edge_fl.secure_aggregation.shamir import combine

__all__ = ["Reject", "unmasked"]


class Reject(Protocol):
    """Counts what was turned away of a client in a round."""

    def __call__(self, client: str, code: str, reason: str, *, round: int) -> None:
        """Count one."""


_TRIES = 300  # of sets of shares, where some are wrong: enough for three wrong ones of a hundred


def unmasked(
    cohort: Cohort,
    sharing: tuple[str, ...],
    survivors: tuple[str, ...],
    masked: Ring,
    answers: Mapping[str, Mapping[str, bytes]],
    *,
    reject: Reject,
) -> CohortSum:
    """The sum of the updates of ``survivors``; ``masked``, its arrays, become its numbers.

    ``answers`` are the shares that survivors gave, by survivor and by member. ``reject`` is called for each survivor
    and member whose share was wrong.

    Raises
    ------
    FrameError
        ``share`` when too few shares are right to give a member's secret back.
    """
    given = {
        client: {cohort.number[by]: held[client] for by, held in answers.items() if client in held}
        for client in sharing
    }
    left = [client for client in sharing if client not in survivors]
    seeds = {client: _secret(cohort, client, given[client], reject, seed=True) for client in survivors}
    keys = {client: KeyPair(_secret(cohort, client, given[client], reject, seed=False)) for client in left}
    for client, seed in seeds.items():
        add_seed(masked, cohort, client, seed, -1)
    for client, key in keys.items():
        for survivor in survivors:
            add_pair(masked, cohort, (survivor, client), key, -1)
    return CohortSum(cohort, sharing, survivors, masked)


def _secret(cohort: Cohort, client: str, shares: Mapping[int, bytes], reject: Reject, *, seed: bool) -> bytes:
    """A member's seed, or its masking key, which is known by its commitment, or by its public half."""
    threshold, member = cohort.roster.threshold, cohort.members[client]
    numbers, draw = sorted(shares), random.Random(0)
    for attempt in range(_TRIES if len(numbers) >= threshold else 0):
        chosen = numbers[:threshold] if attempt == 0 else draw.sample(numbers, threshold)
        found = combine({number: shares[number] for number in chosen})
        if (commitment_of(found) if seed else KeyPair(found).public) == (
            member.commitment if seed else member.masking
        ):
            if attempt:
                _reject_wrong(cohort, shares, chosen, found, reject)
            return found
        if len(numbers) == threshold:
            break
    what = "seed" if seed else "key"
    raise FrameError("share", f"Too few of {len(numbers)} shares of the {what} of '{client}' are right.")


def _reject_wrong(
    cohort: Cohort, shares: Mapping[int, bytes], right: Sequence[int], secret: bytes, reject: Reject
) -> None:
    """Reject those who gave shares that do not lead to ``secret``, as those of the ``right`` numbers do."""
    name = {number: client for client, number in cohort.number.items()}
    for number in sorted(shares.keys() - set(right)):
        tried = [*right[1:], number]
        if combine({one: shares[one] for one in tried}) != secret:
            reject(name[number], "share", "It gave a wrong share.", round=cohort.roster.session.round)
