"""Which devices are summed together: cohorts of about equal size, with as many devices of each tier."""

from collections.abc import Mapping

from edge_fl.core.randomness import Stream

__all__ = ["cohorts_of"]


def cohorts_of(tiers: Mapping[str, int], *, size: int, seed: int, round: int) -> list[list[str]]:
    """As few cohorts of at most ``size`` of the clients, whose ``tiers`` these are, as there can be.

    Each tier is shuffled and dealt out over the cohorts, and the next one goes on where that ended. Ids are in order.
    """
    count = -(-len(tiers) // size)
    cohorts: list[list[str]] = [[] for _ in range(count)]
    dealt = 0
    for tier in sorted(set(tiers.values())):
        clients = sorted(client for client in tiers if tiers[client] == tier)
        stream = Stream.of(seed=seed, purpose="cohorts", round=round, index=tier)
        for place in stream.permutation(len(clients)):
            cohorts[dealt % count].append(clients[place])
            dealt += 1
    return [sorted(cohort) for cohort in cohorts]
