"""What devices and the coordinator refuse in secure aggregation, and what wrong shares do."""

import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from broker.envelope import SignedEnvelope
from broker.provision.authority import Authority
from edge_fl.agent.aggregation import Aggregation
from edge_fl.core.content import Ref
from edge_fl.core.errors import ConfigError, FrameError, RunError
from edge_fl.core.pattern import Pattern
from edge_fl.identity.signatory import FleetSignatory
from edge_fl.measure.models import mlp_layout, random_weights
from edge_fl.runs.config import SecureAggregation
from edge_fl.secure_aggregation.keys import KeyPair
from edge_fl.secure_aggregation.participant import Participant
from edge_fl.secure_aggregation.roster import Roster, decode_roster, encode_roster
from edge_fl.training.update import Update
from edge_fl.wire.frame import decode_frame
from edge_fl.wire.messages import Keys, MakeKeys, SendMasked, ShareKeys, Shares, Task, Unmask, Unmasked
from tests.secure_aggregation.crowd import ROUND, RUN, Crowd, plain, plan, summed, update

LAYOUT = mlp_layout(12, 16, 10, 4)
SECURE = SecureAggregation(holders=2)
CLIENTS = 9


def crowd(**more: Any) -> Crowd:
    updates = {
        f"d{i:03}": update(LAYOUT, f"d{i:03}", Pattern.seeded(LAYOUT, 500, i), "rows", samples=20 + i)
        for i in range(CLIENTS)
    }
    return Crowd(LAYOUT, updates, **more)


def rosters(devices: Crowd) -> tuple[Roster, dict[str, Keys]]:
    """The roster of a first attempt."""
    from broker.secure_aggregation.members import Announced, member_of
    from edge_fl.wire.frame import decode_frame

    how = plan(LAYOUT, "rows", "mean", SECURE)
    keys = {client: device.keys(1) for client, device in devices.members.items()}
    members = [
        member_of(
            Announced.of(decode_frame(one.frame, LAYOUT), tier=0, counted=one.samples, seconds=None),
            how.rule,
            keys[client],
        )
        for client, one in sorted(devices.updates.items())
    ]
    return how.roster(members, 1), keys


def changed(roster: Roster, place: int, **fields: Any) -> bytes:
    """The roster with other fields of one member, whatever they are."""
    told = msgspec.to_builtins(roster, builtin_types=(bytes,))
    told["members"][place].update(fields)
    return msgspec.msgpack.encode(told)


def test_a_device_refuses_a_roster_that_is_not_about_its_update() -> None:
    devices = crowd()
    roster, _ = rosters(devices)
    own = devices.members["d000"]
    mask, pattern = "prefix", (1000).to_bytes(2, "little")
    told = msgspec.to_builtins(roster, builtin_types=(bytes,))
    bad = {
        "keys": changed(roster, 0, masking=KeyPair.fresh().public),
        "seed": changed(roster, 0, commitment=bytes(32)),
        "units": changed(roster, 0, mask=mask, pattern=pattern),
        "samples": changed(roster, 0, samples=1),
        "round": msgspec.msgpack.encode({**told, "round": ROUND + 1}),
        "left out": msgspec.msgpack.encode({**told, "members": told["members"][1:], "threshold": 6}),
        "twice": msgspec.msgpack.encode({**told, "members": [told["members"][0]] * 9}),
        "threshold of half": msgspec.msgpack.encode({**told, "threshold": 4}),
        "threshold above all": msgspec.msgpack.encode({**told, "threshold": 10}),
        "one holder": msgspec.msgpack.encode({**told, "holders": 1}),
        "reach": msgspec.msgpack.encode({**told, "reach": math.inf}),
        "weight": changed(roster, 3, weight=0),
        "outweighed": changed(roster, 3, weight=2**31 - 1),
        "a light one": changed(roster, 3, weight=1),
        "mask": changed(roster, 3, mask="bitmask", pattern=b"\xff"),
        "name": changed(roster, 3, client="a/b"),
        "nothing": b"",
    }
    for what, content in bad.items():
        with pytest.raises(FrameError) as refused:
            own.shares(1, content)
        assert refused.value.code in ("roster", "mask"), what
    assert sorted(own.shares(1, encode_roster(roster)).sealed) == [f"d{i:03}" for i in range(1, CLIENTS)]


def test_a_device_may_require_more_holders_than_the_roster_names() -> None:
    devices = crowd()
    roster, _ = rosters(devices)
    one = devices.updates["d000"]
    own = Participant(decode_frame(one.frame, LAYOUT), one.values, LAYOUT, holders=roster.holders + 1)
    own.keys(1)
    made = own._secrets
    assert made is not None
    told = changed(
        roster,
        0,
        encryption=made.public.encryption,
        masking=made.public.masking,
        commitment=made.public.commitment,
    )
    with pytest.raises(FrameError, match=f"this device requires {roster.holders + 1}"):
        own.shares(1, told)


def test_secrets_are_shared_once_and_masked_once() -> None:
    devices = crowd()
    roster, _ = rosters(devices)
    content = encode_roster(roster)
    shares = {client: device.shares(1, content) for client, device in devices.members.items()}
    own = devices.members["d000"]
    assert own.shares(1, content) == shares["d000"]  # a repetition is no second sharing
    with pytest.raises(FrameError, match="another one than before"):
        own.shares(1, changed(roster, 3, weight=1))
    sealed = {client: one.sealed["d000"] for client, one in shares.items() if client != "d000"}
    masked = own.masked(1, sealed)
    assert own.masked(1, sealed) == masked
    with pytest.raises(FrameError, match="Other members share"):
        own.masked(1, dict(list(sealed.items())[:-1]))
    with pytest.raises(FrameError, match="nothing of attempt 2"):
        own.masked(2, sealed)


def shared(devices: Crowd) -> list[str]:
    roster, _ = rosters(devices)
    shares = {client: device.shares(1, encode_roster(roster)) for client, device in devices.members.items()}
    for client, device in devices.members.items():
        device.masked(1, {other: one.sealed[client] for other, one in shares.items() if other != client})
    return sorted(devices.members)


def test_a_device_unmasks_one_sum_of_a_round() -> None:
    devices = crowd()
    everyone, own = shared(devices), devices.members["d000"]
    answer = own.unmask(1, everyone)
    assert own.unmask(1, everyone) == answer
    with pytest.raises(FrameError, match="another sum of this round"):
        own.unmask(1, everyone[:-1])  # the difference of both sums would be one device's update
    with pytest.raises(FrameError, match="over"):
        own.keys(2)


def test_a_device_unmasks_no_strangers_and_no_few() -> None:
    devices = crowd()
    everyone, own = shared(devices), devices.members["d000"]
    for survivors in ([*everyone, "stranger"], everyone[:3], []):
        with pytest.raises(FrameError, match="Too few members survive, or strangers do"):
            own.unmask(1, survivors)
    assert own.unmask(1, everyone).shares.keys() == set(everyone)


def test_a_device_unmasks_no_row_of_too_few() -> None:
    full, narrow = Pattern.prefix(LAYOUT, 1000), Pattern.prefix(LAYOUT, 500)
    updates = {
        f"d{i:03}": update(LAYOUT, f"d{i:03}", full if i < 2 else narrow, "rows", samples=9)
        for i in range(CLIENTS)
    }
    devices = Crowd(LAYOUT, updates)
    everyone, own = shared(devices), devices.members["d005"]
    with pytest.raises(FrameError, match="Fewer than 2 members hold some rows"):
        own.unmask(1, everyone[1:])
    assert own.unmask(1, everyone).shares


def test_a_device_that_was_started_anew_unmasks_no_second_sum_of_a_round(tmp_path: Path) -> None:
    one = update(LAYOUT, "d000", Pattern.prefix(LAYOUT, 1000), "rows", samples=9)
    task = Task(RUN, ROUND, 0, Ref("0" * 64, 1), "fedavg", {}, 1, 1, 0.1, 0, 0, withheld=True)
    others = crowd()
    others.updates["d000"] = one
    devices = Crowd(LAYOUT, others.updates)
    roster, _ = rosters(devices)
    content = encode_roster(roster)

    held = Aggregation(tmp_path, None)
    held.begin(task)
    held.announce(Update(one.frame, 0.5, {}, one.values), LAYOUT)
    keys = held.answer(MakeKeys(RUN, ROUND, 1), lambda _ref, _largest: b"")
    assert isinstance(keys, Keys)
    told = changed(roster, 0, encryption=keys.encryption, masking=keys.masking, commitment=keys.commitment)
    answer = held.answer(ShareKeys(RUN, ROUND, 1, Ref("0" * 64, 1)), lambda _ref, _largest: told)
    assert isinstance(answer, Shares)
    assert content != told
    sealed = {client: device.shares for client, device in devices.members.items() if client != "d000"}
    shares = {client: share(1, told).sealed["d000"] for client, share in sealed.items()}
    held.masked(SendMasked(RUN, ROUND, 1, shares))
    everyone = tuple(sorted(devices.updates))
    assert isinstance(held.answer(Unmask(RUN, ROUND, 1, everyone), lambda _ref, _largest: b""), Unmasked)

    again = Aggregation(tmp_path, None)
    with pytest.raises(RunError, match="holds no update of round 3"):
        again.answer(MakeKeys(RUN, ROUND, 2), lambda _ref, _largest: b"")
    with pytest.raises(RunError, match="has unmasked a sum of round 3"):
        again.begin(task)
    again.begin(msgspec.structs.replace(task, round=ROUND + 1))
    again.begin(msgspec.structs.replace(task, run="other"))
    (tmp_path / "unmasked.json").write_bytes(b"\xff")
    with pytest.raises(RunError, match="says what this device has unmasked"):
        again.begin(task)
    again.begin(msgspec.structs.replace(task, withheld=False))


def test_a_key_that_is_none_costs_its_device_alone(tmp_path: Path) -> None:
    def tamper(client: str, answer: Any) -> Any:
        zero = client == "d004" and isinstance(answer, Keys)
        return msgspec.structs.replace(answer, masking=bytes(32)) if zero else answer

    devices = crowd(tamper=tamper)
    _, current = summed(devices, plan(LAYOUT, "rows", "mean", SECURE), tmp_path)
    assert "none of X25519" in " ".join(map(str, devices.refused))
    assert sorted(current.reports) == sorted(devices.updates.keys() - {"d004"})


def test_wrong_shares_of_few_members_are_found(tmp_path: Path) -> None:
    def tamper(client: str, answer: Any) -> Any:
        if client in ("d001", "d002") and isinstance(answer, Unmasked):
            return msgspec.structs.replace(answer, shares=dict.fromkeys(answer.shares, bytes(32)))
        return answer

    devices, weights = crowd(tamper=tamper), random_weights(LAYOUT, 1)
    devices.leaves = lambda asked, _attempt: ["d008"] if asked in (SendMasked, Unmask) else ()
    how = plan(LAYOUT, "rows", "mean", SecureAggregation(holders=2, threshold=0.6))
    total, current = summed(devices, how, tmp_path)
    assert len(current.reports) == CLIENTS - 1
    assert devices.rejected == {(ROUND, "d001", "share"), (ROUND, "d002", "share")}
    found, expected = total.sums.change(weights), plain(total, devices, how, weights)
    for tensor in LAYOUT.tensors:
        np.testing.assert_allclose(found[tensor.name], expected[tensor.name], rtol=0, atol=1e-6)


def test_wrong_shares_of_many_cost_the_sum_and_not_the_model(tmp_path: Path) -> None:
    def tamper(client: str, answer: Any) -> Any:
        wrong = isinstance(answer, Unmasked) and client < "d005"
        return msgspec.structs.replace(answer, shares=dict.fromkeys(answer.shares, bytes(32))) if wrong else answer

    total, current = summed(crowd(tamper=tamper), plan(LAYOUT, "rows", "mean", SECURE), tmp_path, quorum=5)
    assert not total.close()
    assert not current.reports


@pytest.mark.parametrize("who", [["d003"], ["d003", "d006"]])
def test_shares_that_nobody_can_open_are_done_without(tmp_path: Path, who: list[str]) -> None:
    def tamper(client: str, answer: Any) -> Any:
        if client in who and isinstance(answer, Shares):
            return msgspec.structs.replace(answer, sealed=answer.sealed | {"d000": bytes(80), "d001": bytes(80)})
        return answer

    devices = crowd(tamper=tamper)
    _, current = summed(devices, plan(LAYOUT, "rows", "mean", SECURE), tmp_path)
    assert len(current.reports) == CLIENTS


def test_shares_for_others_than_the_cohort_are_refused(tmp_path: Path) -> None:
    def tamper(client: str, answer: Any) -> Any:
        if client == "d003" and isinstance(answer, Shares):
            return msgspec.structs.replace(answer, sealed={"d000": bytes(80)})
        return answer

    devices = crowd(tamper=tamper)
    _, current = summed(devices, plan(LAYOUT, "rows", "mean", SECURE), tmp_path)
    assert "others than its cohort" in " ".join(map(str, devices.refused))
    assert sorted(current.reports) == sorted(devices.updates.keys() - {"d003"})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "fleet", hosts=["localhost"], port=1)


def test_keys_are_signed_where_there_are_identities(authority: Authority, tmp_path: Path) -> None:
    names = [f"d{i:03}" for i in range(CLIENTS)]
    signatories = {name: FleetSignatory(authority.device(name)) for name in names}
    coordinator = SignedEnvelope(authority.folder / "coordinator.pem")
    how = plan(LAYOUT, "rows", "mean", SECURE)
    devices = crowd(signatory=signatories.__getitem__)
    _, current = summed(devices, how, tmp_path, check=coordinator.check)
    assert len(current.reports) == CLIENTS

    def tamper(client: str, answer: Any) -> Any:
        """The keys of one are another's: whoever put them in could read its shares."""
        if client == "d004" and isinstance(answer, Keys):
            return msgspec.structs.replace(answer, encryption=KeyPair.fresh().public)
        return answer

    devices = crowd(signatory=signatories.__getitem__, tamper=tamper)
    (tmp_path / "3.aggregation").unlink()
    _, current = summed(devices, how, tmp_path, check=coordinator.check)
    assert "did not sign its keys" in " ".join(map(str, devices.refused))
    assert sorted(current.reports) == sorted(devices.updates.keys() - {"d004"})

    (tmp_path / "3.aggregation").unlink()
    devices = crowd(signatory=signatories.__getitem__, tamper=tamper)
    total, _ = summed(devices, how, tmp_path, check=lambda *_: None)  # a coordinator that lets them pass
    assert not total.close()  # every other device refused
    assert "did not sign what is said of it" in " ".join(map(str, devices.refused))

    authority.revoke("d007")
    (tmp_path / "3.aggregation").unlink()
    devices = crowd(signatory=signatories.__getitem__)
    _, current = summed(devices, how, tmp_path, check=SignedEnvelope(authority.folder / "coordinator.pem").check)
    assert sorted(current.reports) == sorted(devices.updates.keys() - {"d007"})


def test_a_roster_of_strangers_is_read_within_bounds() -> None:
    with pytest.raises(FrameError, match="cannot be read"):
        decode_roster(msgspec.msgpack.encode({"members": [{}] * 200}), LAYOUT)


def test_a_device_without_cryptography_trains_in_no_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    task = Task(RUN, ROUND, 0, Ref("0" * 64, 1), "fedavg", {}, 1, 1, 0.1, 0, 0, withheld=True)
    held = Aggregation(tmp_path, None)
    with pytest.raises(ConfigError, match=r"pip install 'edge-fl\[secure\]'"):
        held.begin(task)
    held.begin(msgspec.structs.replace(task, withheld=False))
