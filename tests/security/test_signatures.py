"""Signed messages: what each end believes, and a run beside a broker's operator who forges and replays."""

import json
import os
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from broker.envelope import SignedEnvelope as OfCoordinator
from broker.provision.authority import Authority
from edge_fl.agent.envelope import SignedEnvelope as OfDevice
from edge_fl.core.bundle import Bundle
from edge_fl.core.content import Ref
from edge_fl.core.errors import ConfigError, FrameError, StateError
from edge_fl.identity import signing
from edge_fl.transport.access import Access
from edge_fl.wire.messages import (
    PROTOCOL,
    Failed,
    Finished,
    Gone,
    Hello,
    Register,
    Registered,
    Topics,
    encode_message,
)
from edge_fl.wire.signed import decode_signed, encode_signed
from tests.security.conftest import ServedFleet
from tests.security.hostile_broker import Operator
from tests.security.keys import key
from tests.security.test_fleet import edge_fl, open_run, run, same, weights

__all__ = ["open_run"]  # a fixture

TOPICS = Topics()
UP, DOWN = TOPICS.up("tea"), TOPICS.down("tea")
REGISTER = Register(protocol=PROTOCOL, agent="a", runtime="onnx", samples=1)
FAILED = Failed("run", 1, "1", "why")
REGISTERED = Registered("run", Ref("0" * 64, 1))


class Pair:
    """A coordinator and the device tea, and a clock of theirs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now = folder, 1_800_000_000_000
        monkeypatch.setattr(signing.time, "time_ns", lambda: self.now * 1_000_000)
        self.authority = Authority.create(folder / "fleet", hosts=["localhost"], port=1)
        self.file = self.authority.device("tea")
        self.coordinator, self.device = self.start(), self.restart()

    def start(self) -> OfCoordinator:
        """Another process of the coordinator."""
        self.now += 10
        return OfCoordinator(self.authority.folder / "coordinator.pem")

    def restart(self) -> OfDevice:
        """Another process of the device."""
        self.now += 10
        return OfDevice(self.file, self.folder / "state")

    def meet(self) -> None:
        """Have either know the other."""
        said = self.coordinator.seal(TOPICS.all, Hello("run"))
        assert self.device.open(TOPICS.all, said) == Hello("run")
        assert self.coordinator.open(UP, "tea", self.device.seal(UP, REGISTER)) == REGISTER


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


def test_a_certificate_of_no_known_version_costs_its_message(pair: Pair) -> None:
    signed = decode_signed(pair.device.seal(UP, REGISTER))
    head, version, rest = signed.certificate.partition(b"\xa0\x03\x02\x01\x02")
    assert version
    damaged = msgspec.structs.replace(signed, certificate=head + version[:-1] + b"\x2c" + rest)
    with pytest.raises(FrameError, match="is not of this fleet"):
        pair.coordinator.open(UP, "tea", encode_signed(damaged))


def refused_by(end: OfDevice | OfCoordinator, topic: str, payload: bytes, client: str = "tea") -> str:
    with pytest.raises(FrameError) as refusal:
        end.open(topic, payload) if isinstance(end, OfDevice) else end.open(topic, client, payload)
    return refusal.value.code


def test_what_is_signed_comes_through_once(pair: Pair) -> None:
    pair.meet()
    up, down = pair.device.seal(UP, FAILED), pair.coordinator.seal(DOWN, REGISTERED)
    assert pair.coordinator.open(UP, "tea", up) == FAILED
    assert pair.device.open(DOWN, down) == REGISTERED
    assert refused_by(pair.coordinator, UP, up) == "replayed"
    assert refused_by(pair.device, DOWN, down) == "replayed"


def test_a_device_is_heard_again_after_a_copy_of_its_identity_spoke(pair: Pair) -> None:
    """The copy's epoch is later; the device's next session has one that is later still."""
    pair.meet()
    copy = OfDevice(pair.file, pair.folder / "copy")
    pair.now += 10
    copy.begin()
    assert pair.coordinator.open(UP, "tea", copy.seal(UP, REGISTER)) == REGISTER
    assert refused_by(pair.coordinator, UP, pair.device.seal(UP, REGISTER)) == "replayed"
    pair.now += 10
    pair.device.begin()
    assert pair.coordinator.open(UP, "tea", pair.device.seal(UP, REGISTER)) == REGISTER


def test_an_older_message_is_refused_after_a_newer_one(pair: Pair) -> None:
    pair.meet()
    first, second = pair.coordinator.seal(DOWN, REGISTERED), pair.coordinator.seal(DOWN, REGISTERED)
    assert pair.device.open(DOWN, second) == REGISTERED
    assert refused_by(pair.device, DOWN, first) == "replayed"


def test_a_signature_is_of_everything(pair: Pair) -> None:
    """Each field changed alone, and another topic."""
    pair.meet()
    honest = decode_signed(pair.coordinator.seal(DOWN, REGISTERED))
    for changed in (
        {"epoch": honest.epoch + 1},
        {"sequence": honest.sequence + 1},
        {"towards": 1},
        {"body": encode_message(Finished("run", 1))},
        {"signature": bytes(64)},
        {"signature": honest.signature[:-1] + bytes([honest.signature[-1] ^ 1])},
    ):
        forged = encode_signed(msgspec.structs.replace(honest, **changed))
        assert refused_by(pair.device, DOWN, forged) == "signature", changed
    assert refused_by(pair.device, TOPICS.all, encode_signed(honest)) == "signature"
    assert refused_by(pair.device, TOPICS.down("coffee"), encode_signed(honest)) == "signature"
    assert pair.device.open(DOWN, encode_signed(honest)) == REGISTERED


def test_what_carries_no_signature_is_refused_but_for_the_brokers_own_word(pair: Pair) -> None:
    pair.meet()
    assert refused_by(pair.device, DOWN, encode_message(REGISTERED)) == "unsigned"
    assert refused_by(pair.coordinator, UP, encode_message(FAILED)) == "unsigned"
    assert pair.coordinator.open(UP, "tea", encode_message(Gone())) == Gone()
    assert pair.device.seal(UP, Gone()) == encode_message(Gone())


def test_nobody_signs_for_another(pair: Pair) -> None:
    pair.meet()
    coffee = OfDevice(pair.authority.device("coffee"), pair.folder / "coffee")
    assert refused_by(pair.coordinator, UP, coffee.seal(UP, REGISTER)) == "certificate"
    assert refused_by(pair.coordinator, UP, coffee.seal(UP, FAILED)) == "signature"
    assert refused_by(pair.device, DOWN, coffee.seal(DOWN, FAILED)) == "signature"
    other = TOPICS.up("coffee")
    assert refused_by(pair.coordinator, other, coffee.seal(other, FAILED), "coffee") == "unregistered"
    assert pair.coordinator.open(UP, "tea", pair.device.seal(UP, FAILED)) == FAILED


def test_a_certificate_must_be_of_the_fleet_hold_now_and_not_be_revoked(pair: Pair) -> None:
    foreign = Authority.create(pair.folder / "other", hosts=["localhost"], port=1).device("tea")
    honest = decode_signed(pair.device.seal(UP, REGISTER))
    for wrong in (
        b"",
        b"\x30\x00",
        honest.certificate[:-1],
        signing.SigningKey.read(foreign).certificate,
        signing.SigningKey.read(pair.authority.device("late", days=0)).certificate,
    ):
        forged = encode_signed(msgspec.structs.replace(honest, certificate=wrong))
        assert refused_by(pair.coordinator, UP, forged) == "certificate"
    pair.meet()
    pair.authority.revoke("tea")
    assert refused_by(pair.coordinator, UP, pair.device.seal(UP, FAILED)) == "unregistered"
    assert refused_by(pair.coordinator, UP, pair.device.seal(UP, REGISTER)) == "certificate"


def test_who_is_not_revoked_is_heard_as_before_when_another_is(pair: Pair) -> None:
    pair.authority.device("spare")
    pair.meet()
    pair.authority.revoke("spare")
    assert pair.coordinator.open(UP, "tea", pair.device.seal(UP, FAILED)) == FAILED


def test_a_list_of_another_authority_revokes_nobody(pair: Pair) -> None:
    other = Authority.create(pair.folder / "other", hosts=["localhost"], port=1)
    other.device("tea")
    other.revoke("tea")
    pair.meet()
    file = pair.authority.folder / "revoked.pem"
    file.write_bytes((other.folder / "revoked.pem").read_bytes())
    os.utime(file, ns=(1, 1))
    assert pair.coordinator.open(UP, "tea", pair.device.seal(UP, REGISTER)) == REGISTER


def test_a_new_process_of_the_coordinator_is_heard_and_the_old_one_is_not(pair: Pair) -> None:
    pair.meet()
    old, late = pair.coordinator, pair.coordinator.seal(DOWN, REGISTERED)
    answer = pair.device.seal(UP, FAILED)
    pair.coordinator = pair.start()
    pair.meet()
    assert refused_by(pair.device, DOWN, late) == "rollback"
    assert refused_by(pair.device, DOWN, old.seal(DOWN, REGISTERED)) == "rollback"
    assert refused_by(pair.coordinator, UP, answer) == "stale"
    pair.device = pair.restart()  # it remembers
    assert refused_by(pair.device, DOWN, old.seal(DOWN, REGISTERED)) == "rollback"


def test_a_coordinator_whose_clock_went_back_is_heard_once_a_device_has_told_it(pair: Pair) -> None:
    pair.meet()
    pair.now -= 3_600_000
    pair.coordinator = pair.start()
    assert refused_by(pair.device, TOPICS.all, pair.coordinator.seal(TOPICS.all, Hello("run"))) == "rollback"
    before = pair.coordinator.epoch
    assert pair.coordinator.open(UP, "tea", pair.device.seal(UP, REGISTER)) == REGISTER
    assert pair.coordinator.epoch > before
    assert pair.device.open(DOWN, pair.coordinator.seal(DOWN, REGISTERED)) == REGISTERED
    pair.now -= 2 * 86_400_000
    pair.coordinator = pair.start()
    assert refused_by(pair.coordinator, UP, pair.device.seal(UP, REGISTER)) == "clock"


def test_a_device_whose_clock_went_back_is_heard(pair: Pair) -> None:
    pair.meet()
    pair.now -= 365 * 86_400_000
    pair.device = pair.restart()
    assert pair.coordinator.open(UP, "tea", pair.device.seal(UP, REGISTER)) == REGISTER


def test_a_coordinator_that_another_replaces_says_a_later_epoch(pair: Pair) -> None:
    pair.meet()
    other = pair.start()
    hello = other.seal(TOPICS.all, Hello("other", "x"))
    assert pair.device.open(TOPICS.all, hello) == Hello("other", "x")
    assert pair.coordinator.overhear(TOPICS.all, hello) == (Hello("other", "x"), False)
    again = pair.coordinator.seal(TOPICS.all, Hello("run"))
    assert pair.device.open(TOPICS.all, again) == Hello("run")
    assert other.overhear(TOPICS.all, again) == (Hello("run"), False)
    assert pair.coordinator.overhear(TOPICS.all, hello) == (Hello("other", "x"), True)


def test_a_changed_key_is_believed_by_its_predecessors_word_alone(pair: Pair) -> None:
    pair.meet()
    old = pair.coordinator
    for _ in range(3):
        pair.authority.rotate("coordinator")
    pair.coordinator = pair.start()
    assert refused_by(pair.device, DOWN, pair.coordinator.seal(DOWN, Finished("run", 1))) == "signature"
    pair.meet()
    assert refused_by(pair.device, DOWN, old.seal(DOWN, REGISTERED)) == "signature"
    pair.device = pair.restart()  # it remembers
    assert pair.device.open(DOWN, pair.coordinator.seal(DOWN, Finished("run", 1))) == Finished("run", 1)
    evil = key(9)
    claim = signing.successor_of(evil, evil)
    forged = signing.Signer(evil, pair.now).seal(DOWN, REGISTERED, successors=(claim,))
    assert refused_by(pair.device, DOWN, forged) == "signature"


def test_a_device_with_a_new_identity_believes_whom_that_names(pair: Pair) -> None:
    pair.meet()
    pair.authority = Authority.create(pair.folder / "new", hosts=["localhost"], port=1)
    pair.file = pair.authority.device("tea")
    pair.coordinator, pair.device = pair.start(), pair.restart()
    pair.meet()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"first":"","key":"xyz","epoch":0,"own":0}', b"\xff\x00"])
def test_a_device_outlives_damage_of_what_it_remembers(pair: Pair, content: bytes) -> None:
    pair.meet()
    (pair.folder / "state" / "coordinator.json").write_bytes(content)
    pair.device = pair.restart()
    pair.meet()


def test_identities_that_cannot_sign_say_so(pair: Pair, tmp_path: Path) -> None:
    fleet = pair.authority.folder
    with pytest.raises(ConfigError, match="no Ed25519 key"):
        OfCoordinator(fleet / "broker.pem")
    with pytest.raises(ConfigError, match="is the coordinator's file"):
        OfDevice(fleet / "coordinator.pem", tmp_path / "other-state")
    (tmp_path / "empty.pem").write_text("Id: tea\n-----BEGIN nothing")
    with pytest.raises(ConfigError, match="no certificate with its key"):
        OfCoordinator(tmp_path / "empty.pem")
    (fleet / "coordinator.pem").unlink()
    with pytest.raises(StateError, match="restore it"):
        pair.authority.rotate("coordinator")


@pytest.mark.parametrize("served", [pytest.param("mosquitto", marks=pytest.mark.mosquitto)], indirect=True)
def test_who_runs_the_broker_can_neither_forge_nor_replay(
    served: ServedFleet, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    """The operator may read and say everything, and has a key of its own alone."""
    with (served.authority.folder / "mosquitto.acl").open("a") as access_list:
        access_list.write(f"\nuser operator\ntopic readwrite {TOPICS.root}/#\n")
    assert served.mosquitto is not None
    served.mosquitto.reload()
    folder, operator = served.folder, Operator(served.reached_by("operator"))
    operator.start()
    try:
        printed = run(folder, [digits_bundle.root, *served.serve], served.devices("tea", "coffee"))
    finally:
        operator.stop()
    assert same(weights(folder), open_run)
    status = json.loads(edge_fl("status", "run", "--json", folder=folder).communicate(timeout=60)[0])
    counted: Counter[str] = Counter()
    for refused in status["rejected"]:
        counted[refused["code"]] += refused["count"]
    assert {"replayed", "unsigned", "signature"} <= counted.keys()
    assert min(operator.said[kind] for kind in ("replayed", "unsigned", "signature", "changed")) > 4
    for sentence in ("carries no signature", "is not signed by whom it should be", "came before"):
        assert f"ignored a message: The message {sentence}" in printed


def test_an_end_without_an_identity_is_told_to_have_one(tmp_path: Path) -> None:
    from broker.envelope import BareEnvelope as BareCoordinator
    from edge_fl.agent.envelope import BareEnvelope as BareDevice

    authority = Authority.create(tmp_path / "fleet", hosts=["localhost"], port=1)
    device = OfDevice(authority.device("tea"), tmp_path / "state")
    with pytest.raises(FrameError, match="serve` with --identity"):
        BareCoordinator().open(UP, "tea", device.seal(UP, FAILED))
    coordinator = OfCoordinator(authority.folder / "coordinator.pem")
    with pytest.raises(FrameError, match="this device with --identity"):
        BareDevice().open(DOWN, coordinator.seal(DOWN, REGISTERED))
    assert Access().signing is None
