"""What a coordinator gone bad asks in secure aggregation, to learn one device's update: no device may answer."""

from pathlib import Path

import msgspec

from edge_fl.core.bundle import MANIFEST, Bundle
from edge_fl.core.content import Ref
from edge_fl.core.pattern import Pattern
from edge_fl.identity.signatory import FleetSignatory
from edge_fl.secure_aggregation.keys import KeyPair, Session, commitment_of
from edge_fl.secure_aggregation.roster import Member, Roster, encode_roster
from edge_fl.secure_aggregation.statement import PublicKeys, Said, statement_of
from edge_fl.wire.masks import encode_mask
from edge_fl.wire.messages import (
    AggregationRequest,
    Failed,
    Keys,
    MakeKeys,
    Offer,
    Register,
    Registered,
    SendMasked,
    ShareKeys,
    Shares,
    Task,
    Unmask,
    Unmasked,
    Verdict,
)
from tests.agent.stage import frame
from tests.security.hostile_coordinator import HostileCoordinator, task_of

RUN, SAMPLES = "hostile-sum", 9
TIERS = {"coffee": 0, "milk": 1, "tea": 0}  # milk holds half of the rows
FJORD = {"method": "fjord", "parameters": {"widths": [1000, 500]}}


def members_of(hostile: HostileCoordinator, bundle: Bundle) -> dict[str, Member]:
    """The devices' rows of a roster, once each has trained in a round that is to be summed."""
    manifest = hostile.give(bundle.read(MANIFEST))
    model = hostile.give(frame(bundle, "model", 0, bundle.weights(), run=RUN))
    samples = {client: said.samples for client, said in hostile.heard if isinstance(said, Register)}
    members = {}
    for client, tier in TIERS.items():
        hostile.say(client, Registered(RUN, manifest))
        offer = hostile.ask(client, task_of(RUN, model, tier=tier, withheld=True, **FJORD), Offer)
        hostile.say(client, Verdict(RUN, 1, offer.update.digest, accepted=False, code="hostile"))
        keys = hostile.ask(client, MakeKeys(RUN, 1, 1), Keys)
        mask, pattern = encode_mask(Pattern.prefix(bundle.layout, 500 if tier else 1000))
        own = (keys.encryption, keys.masking, keys.commitment, keys.signature, keys.certificate)
        members[client] = Member(client, samples[client], samples[client], mask, pattern, *own)
    return members


def stranger(name: str, identity: Path, bundle: Bundle) -> Member:
    """Another member of the cohort, whose secrets the coordinator knows, as the holder of ``identity`` signs it."""
    public = PublicKeys(KeyPair.fresh().public, KeyPair.fresh().public, commitment_of(bytes(32)))
    full, signatory = Pattern.full(bundle.layout), FleetSignatory(identity)
    mask, pattern = encode_mask(full)
    said = statement_of(Session(RUN, 1, 1), name, Said.of(full, SAMPLES), public)
    return Member(name, SAMPLES, SAMPLES, mask, pattern, *public, signatory.sign(said), signatory.certificate)


def spy_on_a_sum(hostile: HostileCoordinator, bundle: Bundle, *, own: Path, foreign: Path) -> list[str]:
    """Ask `tea` for all that would show its update, beside the sum that each device helps unmask; why it refuses.

    ``own`` is the coordinator's identity, ``foreign`` one of another authority.
    """
    members, reasons = members_of(hostile, bundle), list[str]()
    everyone, tea, coffee = tuple(members), members["tea"], members["coffee"]

    def share(*cohort: Member) -> ShareKeys:
        rows = tuple(sorted(cohort, key=lambda member: member.client))
        roster = Roster(RUN, 1, 1, len(rows) // 2 + 1, 2, 1.0, "units", rows)
        return ShareKeys(RUN, 1, 1, hostile.give(encode_roster(roster)))

    def refuses(request: Task | AggregationRequest, sentence: str) -> None:
        reasons.append(hostile.ask("tea", request, Failed, sentence).reason)

    known = stranger("coffee", own, bundle)
    false = msgspec.structs.replace(coffee, encryption=known.encryption, masking=known.masking)
    refuses(share(tea, false), "'coffee' did not sign what is said of it")
    refuses(share(tea, stranger("spy", foreign, bundle)), "The certificate that 'spy' shows is not of this fleet")
    refuses(share(tea, stranger("coordinator", own, bundle)), "is the coordinator's, and no device's")
    honest = share(*members.values())
    shares = {client: hostile.ask(client, honest, Shares) for client in members}
    refuses(share(tea, coffee), "The roster is another one than before")
    for client in members:
        sealed = {other: one.sealed[client] for other, one in shares.items() if other != client}
        hostile.ask(client, SendMasked(RUN, 1, 1, sealed), Offer)
    refuses(Unmask(RUN, 1, 1, (*everyone, "spy")), "Too few members survive, or strangers do")
    refuses(Unmask(RUN, 1, 1, ("milk", "tea")), "Fewer than 2 members hold some rows")
    unmasked = {client: hostile.ask(client, Unmask(RUN, 1, 1, everyone), Unmasked) for client in members}
    refuses(Unmask(RUN, 1, 1, ("coffee", "tea")), "The device unmasked another sum of this round")
    refuses(MakeKeys(RUN, 1, 2), "Attempt 2 is over")
    refuses(task_of(RUN, Ref("7" * 64, 9), withheld=True, **FJORD), "This device has unmasked a sum of round 1")
    given = [said for client, said in hostile.heard if client == "tea" and isinstance(said, Shares | Unmasked)]
    assert all(said in (shares["tea"], unmasked["tea"]) for said in given)
    return reasons
