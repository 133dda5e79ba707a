"""Wrong files for an identity: each is refused with what it is, and what to take."""

import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.envelope import open_envelope
from broker.open_broker import open_broker
from broker.provision.authority import Authority
from edge_fl import Device
from edge_fl.agent.doctor import Examined, examine
from edge_fl.commands.broker_options import fleet_of
from edge_fl.core.errors import ConfigError
from edge_fl.identity.file import read_identity
from edge_fl.identity.signing import SigningKey
from edge_fl.transport.address import BrokerAddress
from tests.security.test_fleet import edge_fl

BLOCKS = b"".join(
    b"-----BEGIN %s-----\nMII=\n-----END %s-----\n" % (kind, kind)
    for kind in (b"CERTIFICATE", b"PRIVATE KEY", b"CERTIFICATE")
)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    authority = Authority.create(tmp_path / "fleet", hosts=["localhost"], port=1)
    authority.device("tea")
    return authority.folder


def test_every_file_of_a_fleet_is_read(fleet: Path) -> None:
    names = [read_identity(fleet / name).name for name in ("broker.pem", "coordinator.pem", "devices/tea.pem")]
    assert names == ["broker", "coordinator", "tea"]


def test_a_file_that_is_cut_off_anywhere_is_refused_as_that(fleet: Path) -> None:
    file = fleet / "devices" / "tea.pem"
    whole = file.read_text()
    begins = whole.index("Id: tea\n") + len("Id: tea\n")
    for length in range(begins, len(whole.rstrip())):
        file.write_text(whole[:length])
        with pytest.raises(ConfigError, match=r"'.*tea\.pem' is an identity that is cut off or damaged: copy"):
            read_identity(file)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is no identity: take the file"),
        (b"hello", "is no identity: take the file"),
        (b"\xff\xfe", "is no identity: take the file"),
        (
            b"-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n",
            "holds certificates and no name: take",
        ),
        (b"Id: tea\nCoordinator: xyz\n" + BLOCKS, "keys are damaged: copy"),
        (b"Id: tea\nCoordinator: 00ff\n" + BLOCKS, "keys are damaged: copy"),
        (b"Id: tea\nBroker: foo bar\n" + BLOCKS, "broker's address or fleet is damaged: copy"),
        (b"Id: tea\nFleet: a#\n" + BLOCKS, "broker's address or fleet is damaged: copy"),
        (b"-----BEGIN PRIVATE KEY-----\nMII=\n-----END PRIVATE KEY-----\n", "is a secret key by itself, .*: take"),
    ],
)
def test_a_file_that_is_none_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file.pem").write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        read_identity(tmp_path / "file.pem")


def test_an_authority_s_certificate_is_no_identity(fleet: Path) -> None:
    with pytest.raises(ConfigError, match=r"'.*ca\.pem' holds certificates and no name: take the file"):
        read_identity(fleet / "ca.pem")


def test_a_device_with_another_s_file_is_refused_before_it_takes_a_state_folder(
    fleet: Path, tmp_path: Path
) -> None:
    state, file = tmp_path / "state", fleet / "devices" / "tea.pem"
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("".join(line for line in file.open() if not line.startswith("Coordinator: ")))
    for wrong, sentence in (
        (fleet / "coordinator.pem", "is the coordinator's file: take the file of this device"),
        (fleet / "broker.pem", "is the broker's file: take the file of this device"),
        (damaged, "names no coordinator, so it is damaged or no device's: copy the file again"),
    ):
        words = [
            "device",
            "--broker",
            "mqtts://localhost:1",
            "--data",
            "digits:0/9",
            "--state",
            state,
            "--identity",
        ]
        for command in (words, [words[0], "doctor", *words[1:]]):
            done = edge_fl(*command, wrong, folder=tmp_path)
            assert sentence in " ".join(done.communicate(timeout=60)[0].split())
            assert done.returncode == 15
        address = BrokerAddress("localhost", 1, "mqtts", access=read_identity(wrong).access)
        with pytest.raises(ConfigError, match=sentence):
            Device(str(address), "digits:0/9", id="tea", state=state, access=address.access)
    assert not state.exists()


def test_an_identity_names_its_fleet(tmp_path: Path) -> None:
    home = Authority.create(tmp_path / "fleet", hosts=["localhost"], port=1, fleet="home")
    files = [home.device("tea"), home.folder / "broker.pem", home.folder / "coordinator.pem"]
    for file in files:
        assert read_identity(file).fleet == "home"
        assert fleet_of(file, None) == fleet_of(file, "home") == "home"
        with pytest.raises(ConfigError, match=r"is of the fleet 'home': leave --fleet out"):
            fleet_of(file, "edge-fl")
    assert (fleet_of(None, None), fleet_of(None, "other")) == ("edge-fl", "other")
    with pytest.raises(ConfigError, match="no '#'"):
        fleet_of(None, "a/#")


def test_a_coordinator_with_another_s_file_is_refused(fleet: Path) -> None:
    with pytest.raises(ConfigError, match=r"is the broker's file: take coordinator\.pem"):
        open_envelope(fleet / "broker.pem")
    with pytest.raises(ConfigError, match=r"is a device's file, .*: take coordinator\.pem"):
        open_envelope(fleet / "devices" / "tea.pem")
    for name in ("coordinator", "devices/tea"):
        access = read_identity(fleet / f"{name}.pem").access
        with ExitStack() as stack, pytest.raises(ConfigError, match=r"embedded broker .*: take broker\.pem"):
            open_broker("embedded", stack, access=access)


def test_a_file_as_windows_saves_it_is_read(fleet: Path) -> None:
    file = fleet / "devices" / "tea.pem"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))

    assert read_identity(file).name == "tea"
    assert read_identity(file).access.context() is not None
    assert SigningKey.read(file)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (slice(0, 1), "holds another's key than its certificate's"),
        (slice(0, 2), "is called 'tea' and holds another's"),
    ],
)
def test_a_file_of_two_identities_is_refused(part: slice, sentence: str, fleet: Path) -> None:
    """Its certificate alone, or with its key, is another's."""
    Authority.open(fleet).device("milk")
    file, others = (fleet / "devices" / f"{name}.pem" for name in ("tea", "milk"))
    head, *blocks = file.read_text().split("-----BEGIN ")
    blocks[part] = others.read_text().split("-----BEGIN ")[1:][part]
    file.write_text("-----BEGIN ".join([head, *blocks]))

    with pytest.raises(ConfigError, match=rf"tea\.pem' {sentence}"):
        SigningKey.read(file)


def test_a_coordinator_of_another_fleet_is_not_put_beside_the_embedded_broker(fleet: Path, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", hosts=["localhost"], port=1).folder
    (fleet / "coordinator.pem").write_bytes((other / "coordinator.pem").read_bytes())

    with (
        ExitStack() as stack,
        pytest.raises(ConfigError, match=r"coordinator\.pem' is of another fleet than '.*broker\.pem'"),
    ):
        open_broker("embedded", stack, access=read_identity(fleet / "broker.pem").access)


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "damaged"), (b"\xff", "damaged"), (None, "another authority's")]
)
def test_a_list_of_revoked_ones_that_cannot_be_used_ends_the_coordinator(
    content: bytes | None, why: str, fleet: Path, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other", hosts=["localhost"], port=1).folder
    (fleet / "revoked.pem").write_bytes((other / "revoked.pem").read_bytes() if content is None else content)

    with pytest.raises(
        ConfigError, match=rf"revoked\.pem' is {why}: copy it again, as revoked devices would come in"
    ):
        open_envelope(fleet / "coordinator.pem")


def test_without_the_list_of_revoked_ones_no_embedded_broker_begins(
    fleet: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With another broker that alone keeps revoked devices out, which the log says."""
    (fleet / "revoked.pem").unlink()
    with (
        ExitStack() as stack,
        pytest.raises(ConfigError, match=r"revoked\.pem' is missing, .*: copy it and 'broker"),
    ):
        open_broker("embedded", stack, access=read_identity(fleet / "broker.pem").access)
    open_envelope(fleet / "coordinator.pem")
    assert "is missing: revoked devices are kept out by the broker alone" in caplog.text


def test_the_doctor_names_an_identity_that_ran_out(fleet: Path, tmp_path: Path) -> None:
    file = Authority.open(fleet).device("late", days=0)
    time.sleep(1.1)
    address = BrokerAddress("localhost", 1, "mqtts", access=read_identity(file).access)
    agent = Examined(address, "late", "digits:0/10", tmp_path / "state", "onnx", "edge-fl", 0.1)

    found = next(finding for finding in examine(agent) if finding.check == "certificate")

    assert found.level == "failed"
    assert re.search(r"late\.pem' expired on \d{4}-\d\d-\d\d: have a new identity made", found.sentence)
