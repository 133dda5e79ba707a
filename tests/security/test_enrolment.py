"""Enrolment by one-time tokens: real processes at a real listener, and whoever comes with something else."""

import dataclasses
import io
import json
import re
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.provision.authority import BROKER, Authority
from broker.provision.listener import answer
from broker.provision.lock import locked_authority
from broker.provision.tokens import Tokens
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import BrokerError, ConfigError, LoginRefusedError, RefusedError, StateError
from edge_fl.identity.enrolment import enrol, request_of
from edge_fl.identity.file import read_identity
from edge_fl.identity.signing import SigningKey
from edge_fl.identity.token import Token, read_token, token_of, token_text
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.wire.enrol import Enrol, Enrolled, EnrolRefused, EnrolTopics, encode_enrol
from tests.security.conftest import SecuredFleet
from tests.security.test_fleet import edge_fl, run, weights

TOPICS = EnrolTopics()


def asks(name: str, number: int) -> Enrol:
    """A request of a key that is the same in every test."""
    return Enrol(request_of(name, Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)))


def made(folder: Path, name: str, *, hours: float = 1.0) -> Token:
    with locked_authority(folder) as authority:
        return Tokens(folder).make(authority, name, hours=hours)


@contextmanager
def listening(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`edge-fl provision listen` of a fleet, once it answers; what it says is in ``listen.log`` beside the fleet."""
    port = Authority.open(folder).enrol_port
    words = ["provision", "listen", "--folder", folder, "--host", "127.0.0.1", *options]
    process = edge_fl(*words, folder=folder.parent)
    try:
        limit = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < limit
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        (folder.parent / "listen.log").write_text(process.communicate(timeout=60)[0])


def new_fleet(root: Path) -> Path:
    Authority.create(root, hosts=["localhost"], port=free_port(), enrol_port=free_port())
    return root


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fleet that listens."""
    folder = new_fleet(tmp_path_factory.mktemp("enrolment") / "fleet")
    with listening(folder):
        yield folder


def by_tokens(folder: Path, names: tuple[str, ...], here: Path, *options: str) -> dict[str, list[str | Path]]:
    """Enrol devices as their owners do, a process each; gives their options. ``options`` are the listener's."""
    given = edge_fl("provision", "token", *names, "--folder", folder, "-o", "tokens", "--qr", folder=here)
    assert given.wait(60) == 0, given.communicate()[0]
    with listening(folder, *options) as listener:
        enrolling = [
            edge_fl("device", "enrol", "--token-file", f"tokens/{name}.token", "-o", f"{name}.pem", folder=here)
            for name in names
        ]
        printed = [process.communicate(timeout=60)[0] for process in enrolling]
        assert [process.returncode for process in enrolling] == [0] * len(names), printed
        assert "--once" not in options or listener.wait(60) == 0
    for name in names:
        secret = token_of((here / "tokens" / f"{name}.token").read_text()).secret.hex()
        assert secret not in "".join(printed) + (folder / "tokens.json").read_text()
        assert stat.S_IMODE((here / f"{name}.pem").stat().st_mode) == 0o600
        assert stat.S_IMODE((here / "tokens" / f"{name}.svg").stat().st_mode) == 0o600
    return {name: ["--identity", f"{name}.pem"] for name in names}


NAMES = ("tea", "coffee", "milk")


@pytest.mark.matrix
@pytest.mark.parametrize("secured", [pytest.param("mosquitto", marks=pytest.mark.mosquitto)], indirect=True)
def test_three_devices_enrol_and_train_over_mosquitto(
    secured: SecuredFleet, tmp_path: Path, digits_bundle: Bundle
) -> None:
    folder = secured.authority.folder
    devices = by_tokens(folder, NAMES, tmp_path)
    printed = run(tmp_path, [digits_bundle.root, "--identity", folder / "coordinator.pem"], devices)
    assert "round 2" in printed
    assert weights(tmp_path)


def test_three_devices_enrol_and_train_over_the_embedded_broker(tmp_path: Path, digits_bundle: Bundle) -> None:
    folder = new_fleet(tmp_path / "fleet")
    devices = by_tokens(folder, NAMES, tmp_path, "--once")
    port = read_identity(tmp_path / "tea.pem").broker.rpartition(":")[2]
    serve = [digits_bundle.root, "--broker", "embedded", "--identity", folder / "broker.pem", "--port", port]
    printed = run(tmp_path, serve, devices)
    assert "round 2" in printed
    assert weights(tmp_path)


def enters(secured: SecuredFleet, file: Path) -> bool:
    connection = Connection(address=secured.of(file), client_id="tea", subscriptions=["edge-fl/2/down/tea"])
    try:
        connection.open(timeout=20)
    except BrokerError:
        return False
    finally:
        connection.close()
    return True


def test_an_enrolled_device_is_listed_and_can_be_revoked(secured: SecuredFleet, tmp_path: Path) -> None:
    folder, file = secured.authority.folder, tmp_path / "tea.pem"
    with listening(folder):
        enrol(made(folder, "tea"), file, timeout=30)
    with locked_authority(folder) as authority:
        given, copied = read_identity(file), read_identity(authority.device("coffee"))
    assert (given.name, given.broker, given.coordinator) == ("tea", copied.broker, copied.coordinator)
    assert enters(secured, file)
    listed = edge_fl("provision", "list", "--folder", folder, "--json", folder=tmp_path)
    assert ("tea", False) in [(e["name"], e["revoked"]) for e in json.loads(listed.communicate(timeout=60)[0])]
    revoked = edge_fl("provision", "revoke", "tea", "--folder", folder, folder=tmp_path)
    assert revoked.wait(60) == 0
    secured.reload()
    limit = time.monotonic() + 90  # Mosquitto reads its lists when it comes to it
    while enters(secured, file):
        assert time.monotonic() < limit


def test_a_file_has_the_form_that_provision_device_writes(fleet: Path, tmp_path: Path) -> None:
    enrol(made(fleet, "form"), tmp_path / "form.pem", timeout=30)
    with locked_authority(fleet) as authority:
        other = authority.device("other")

    def form(file: Path) -> list[str]:
        lines = file.read_text().replace("Id: form", "Id: other").splitlines()
        return [line for line in lines if " " in line]

    assert form(tmp_path / "form.pem") == form(other)
    SigningKey.read(tmp_path / "form.pem")


def test_expired(fleet: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="has expired"):
        enrol(made(fleet, "late", hours=-1.0), tmp_path / "x.pem", timeout=30)
    assert not (tmp_path / "x.pem").exists()


def test_used(fleet: Path, tmp_path: Path) -> None:
    token = made(fleet, "twice")
    enrol(token, tmp_path / "first.pem", timeout=30)
    with pytest.raises(RefusedError, match="was used before"):
        enrol(token, tmp_path / "second.pem", timeout=30)


def test_taken(fleet: Path, tmp_path: Path) -> None:
    token = made(fleet, "taken")
    with locked_authority(fleet) as authority:
        authority.device("taken")
    with pytest.raises(RefusedError, match="has a device 'taken' already"):
        enrol(token, tmp_path / "x.pem", timeout=30)
    with pytest.raises(ConfigError, match="'taken' has an identity"):
        made(fleet, "taken")


@pytest.mark.parametrize("wrong", [{"secret": bytes(16)}, {"id": "0" * 16}])
def test_a_token_that_nobody_made(fleet: Path, tmp_path: Path, wrong: dict[str, object]) -> None:
    token = msgspec.structs.replace(made(fleet, "unknown"), **wrong)
    with pytest.raises(LoginRefusedError, match="does not know this token"):
        enrol(token, tmp_path / "x.pem", timeout=30)


def test_a_newer_token_of_a_name_replaces_an_earlier_one(fleet: Path, tmp_path: Path) -> None:
    earlier, newer = made(fleet, "newer"), made(fleet, "newer")
    with pytest.raises(LoginRefusedError):
        enrol(earlier, tmp_path / "x.pem", timeout=30)
    enrol(newer, tmp_path / "x.pem", timeout=30)


def test_a_file_that_exists_is_kept(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("precious")
    with pytest.raises(StateError, match="exists"):
        enrol(made(fleet, "kept"), tmp_path / "x.pem", timeout=30)
    assert (tmp_path / "x.pem").read_text() == "precious"


def test_nobody_listens(fleet: Path, tmp_path: Path) -> None:
    token = msgspec.structs.replace(made(fleet, "nobody"), listener=f"mqtts://localhost:{free_port()}")
    (tmp_path / "token").write_text(token_text(token))
    words = ["device", "enrol", "--token-file", "token", "-o", "x.pem", "--connect-timeout", "1"]
    said = edge_fl(*words, folder=tmp_path)
    assert "No enrol listener answers" in said.communicate(timeout=60)[0]
    assert said.returncode == 16


@contextmanager
def impostor(chain: Path, heard: list[bytes]) -> Iterator[int]:
    """A TLS server with a certificate of its own, which notes what it is told; gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.settimeout(5)
                try:
                    with client, context.wrap_socket(client, server_side=True) as session:
                        heard.append(session.recv(1000))
                except OSError:  # the client went away
                    heard.append(b"")

        serving = threading.Thread(target=serve)
        serving.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        serving.join(20)


@pytest.mark.parametrize("shows_the_true_authority", [False, True])
def test_a_man_in_the_middle_does_not_hear_the_secret(
    fleet: Path, tmp_path: Path, other_authority: Authority, shows_the_true_authority: bool
) -> None:
    """Whoever wants may show the fleet's authority: it is public. The listener's certificate must come from it."""
    token, heard, chain = made(fleet, "middle"), list[bytes](), other_authority.folder / "broker.pem"
    expected = "another authority's fingerprint"
    if shows_the_true_authority:
        own = chain.read_text().partition("-----END PRIVATE KEY-----\n")
        chain = tmp_path / "chain.pem"
        chain.write_text(own[0] + own[1] + (fleet / "ca.pem").read_text())
        expected = "does not come from"
    with impostor(chain, heard) as port:
        towards = msgspec.structs.replace(token, listener=f"mqtts://127.0.0.1:{port}")
        with pytest.raises(BrokerError, match=expected):
            enrol(towards, tmp_path / "x.pem", timeout=20)
    assert set(heard) <= {b""}
    assert heard


def test_the_clock_is_off_or_the_listeners_certificate_has_expired(tmp_path: Path) -> None:
    folder = new_fleet(tmp_path / "fleet")
    Authority.open(folder).rotate(BROKER, days=0)
    with listening_anyway(folder), pytest.raises(BrokerError, match="see this machine's clock"):
        enrol(made(folder, "tea"), tmp_path / "x.pem", timeout=20)


@contextmanager
def listening_anyway(folder: Path) -> Iterator[None]:
    """A TLS server with the fleet's certificate, and nothing behind it."""
    heard: list[bytes] = []
    with impostor(folder / "broker.pem", heard) as port:
        file = folder / "issued.json"
        record = json.loads(file.read_text()) | {"enrol_port": port}
        file.write_text(json.dumps(record))
        yield
    assert set(heard) <= {b""}


@pytest.mark.parametrize(
    "text",
    ["", "tea", "edge-fl-enrol:", "edge-fl-enrol:1:", "edge-fl-enrol:1:AAAA", "edge-fl-enrol:1:" + "A" * 5000],
)
def test_other_texts_are_no_tokens(text: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        token_of(text)


TOKEN = Token("mqtts://localhost:8884", "edge-fl", "tea", "0123456789abcdef", b"s" * 16, b"a" * 32)


TEXT = (
    "edge-fl-enrol:1:9wC_y5a2bXF0dHM6Ly9sb2NhbGhvc3Q6ODg4NKdlZGdlLWZso3RlYbAwMTIzNDU2Nzg5YWJjZGVmxBBzc3Nzc3Nzc3Nzc3"
    "Nzc3NzxCBhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYQ"
)


def test_a_token_survives_its_text_and_no_changed_letter_does() -> None:
    text = token_text(TOKEN)
    assert text == TEXT  # docs/protocol.md
    assert token_of(f" {text}\n") == TOKEN
    assert (b"s" * 16).hex() not in repr(TOKEN)
    for place in range(len("edge-fl-enrol:1:"), len(text)):
        changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        with suppress(ConfigError):
            assert token_of(changed) == TOKEN  # the last letter has bits that mean nothing
            assert place == len(text) - 1
    with pytest.raises(ConfigError, match="another version"):
        token_of(text.replace(":1:", ":2:"))
    for wrong in ({"name": "a/b"}, {"listener": "mqtt://localhost:1"}, {"fleet": "a#"}, {"name": ""}):
        with pytest.raises(ConfigError, match="damaged"):
            token_of(token_text(msgspec.structs.replace(TOKEN, **wrong)))


def test_a_damaged_token_is_not_said(tmp_path: Path) -> None:
    text = token_text(TOKEN)
    damaged = text[:30] + "A" + text[31:]
    environment = {"EDGE_FL_TOKEN": damaged}
    process = edge_fl("device", "enrol", "-o", "x.pem", folder=tmp_path, **environment)
    said = process.communicate(timeout=60)[0]
    assert (process.returncode, "damaged" in said, damaged in said) == (15, True, False)
    process = edge_fl("device", "enrol", "-o", "x.pem", folder=tmp_path)
    assert "EDGE_FL_TOKEN" in process.communicate(timeout=60)[0]
    assert process.returncode == 15


def test_a_token_comes_from_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGE_FL_TOKEN", raising=False)
    (tmp_path / "token").write_text(f"{TEXT}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXT}\nmore\n"))
    assert read_token(str(tmp_path / "token")) == read_token("-") == TOKEN
    (tmp_path / "token").write_bytes(b"\xff" * 5000)
    for wrong in ("token", "nowhere"):
        with pytest.raises(ConfigError, match="--token-file"):
            read_token(str(tmp_path / wrong))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tea", "There is no token in {}: a token begins with 'edge-fl-enrol:'"),
        (TEXT.replace(":1:", ":2:"), "The token in {} is of another version of edge-fl"),
        (TEXT[:-9], "The token in {} is damaged: copy its whole text"),
    ],
)
def test_a_wrong_token_is_said_by_where_it_is(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tea.token"
    file.write_text(text)
    monkeypatch.setenv("EDGE_FL_TOKEN", text)
    for given in (str(file), "-", None):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        where = {"-": "the standard input", None: "the variable EDGE_FL_TOKEN"}.get(given, f"'{file}'")
        with pytest.raises(ConfigError, match=re.escape(sentence.format(where))):
            read_token(given)


def test_a_token_in_the_place_of_its_file_is_not_said() -> None:
    with pytest.raises(ConfigError, match="--token-file takes a file, and this is a token itself") as refusal:
        read_token(TEXT)
    assert TEXT not in str(refusal.value)


def test_the_list_says_which_tokens_wait_and_what_expires(tmp_path: Path) -> None:
    folder = new_fleet(tmp_path / "fleet")
    made(folder, "tea")
    made(folder, "late", hours=-1.0)
    authority = Authority.open(folder)
    authority.device("coffee", days=29)
    authority.device("milk", days=31)
    said = edge_fl("provision", "list", "--folder", folder, folder=tmp_path).communicate(timeout=60)[0]
    waiting, expiring = said.splitlines()[-2:]
    assert "tea" in waiting
    assert "late" not in waiting
    assert "coffee" in expiring
    assert "milk" not in expiring


def test_without_the_authoritys_key(tmp_path: Path) -> None:
    folder = new_fleet(tmp_path / "fleet")
    token, kept = made(folder, "tea"), (folder / "ca.key").read_bytes()
    with listening(folder):
        (folder / "ca.key").unlink()
        with pytest.raises(RefusedError, match="can sign nothing now"):
            enrol(token, tmp_path / "tea.pem", timeout=30)
        process = edge_fl("provision", "listen", "--folder", folder, folder=tmp_path)
        assert "ca.key" in process.communicate(timeout=60)[0]
        assert process.returncode == 21
        (folder / "ca.key").write_bytes(kept)
        enrol(token, tmp_path / "tea.pem", timeout=30)
    log = (tmp_path / "listen.log").read_text()
    assert "tea has enrolled" in log
    assert "ca.key" in log
    assert token.secret.hex() not in log


def test_of_two_devices_with_one_token_one_enrols(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token_text(made(fleet, "raced")))
    both = [edge_fl("device", "enrol", "--token-file", "token", "-o", f"{n}.pem", folder=tmp_path) for n in "ab"]
    printed = [process.communicate(timeout=60)[0] for process in both]
    assert sorted(process.returncode for process in both) == [0, 22], printed
    assert [held.name for held in Authority.open(fleet).issued].count("raced") == 1


def test_a_token_gives_one_certificate_whatever_comes_at_once(tmp_path: Path) -> None:
    folder = new_fleet(tmp_path / "fleet")
    token = made(folder, "tea")
    requests = [asks("tea", number) for number in range(1, 9)] * 2
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda request: answer(folder, token.id, request), requests))
    given = [(found.request, found.certificate) for found in answers if isinstance(found, Enrolled)]
    assert len(given) == 2  # the same key again: its answer may have been lost
    assert len(set(given)) == 1
    assert {found.why for found in answers if isinstance(found, EnrolRefused)} == {"used"}


@pytest.mark.parametrize("last", ["certify", "spend", "remember"])
def test_a_listener_killed_at_any_step_enrols_the_device_when_it_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """The certificate is on the authority's list whenever a device has it, and nobody else gets the token."""
    folder = new_fleet(tmp_path / "fleet")
    token, where = made(folder, "tea"), Tokens if last == "spend" else Authority
    step = getattr(where, last)

    def killed(*parts: object) -> None:
        step(*parts)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, last, killed)
        with pytest.raises(KeyboardInterrupt):
            answer(folder, token.id, asks("tea", 1))
    found = answer(folder, token.id, asks("tea", 1))
    assert isinstance(found, Enrolled)
    assert answer(folder, token.id, asks("tea", 1)) == found
    authority = Authority.open(folder)
    assert authority.remembers(found.certificate)
    assert [held.name for held in authority.issued].count("tea") == 1
    other = answer(folder, token.id, asks("tea", 2))
    assert isinstance(other, EnrolRefused)
    assert other.why == "used"


def test_a_name_given_away_while_the_listener_was_down_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_fleet(tmp_path / "fleet")
    token = made(folder, "tea")
    with monkeypatch.context() as patch:
        patch.setattr(Authority, "remember", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            answer(folder, token.id, asks("tea", 1))
    Authority.open(folder).device("tea")
    found = answer(folder, token.id, asks("tea", 1))
    assert isinstance(found, EnrolRefused)
    assert found.why == "taken"


def session(token: Token, folder: Path, *subscriptions: str) -> Connection:
    address = BrokerAddress.parse(token.listener)
    access = Access(ca=folder / "ca.pem", user=token.id, password=token.secret.hex())
    return Connection(
        address=dataclasses.replace(address, access=access), client_id="x", subscriptions=subscriptions
    )


@pytest.mark.parametrize("topic", ["#", "edge-fl/2/enrol/+/answer", "edge-fl/2/enrol/+/request", "edge-fl/2/all"])
def test_the_holder_of_a_token_reads_its_own_answer_alone(fleet: Path, topic: str) -> None:
    connection = session(made(fleet, "curious"), fleet, topic)
    with pytest.raises(BrokerError, match="refuses a subscription"):
        connection.open(timeout=20)


def test_the_holder_of_a_token_asks_for_itself_alone(fleet: Path) -> None:
    own, other = made(fleet, "own"), made(fleet, "neighbour")
    connection = session(own, fleet, TOPICS.answer(own.id))
    connection.open(timeout=20)
    try:
        payload = encode_enrol(asks("neighbour", 7))
        for topic in (TOPICS.request(other.id), TOPICS.answer(other.id), TOPICS.request(own.id)):
            connection.publish(topic, payload)
        limit = time.monotonic() + 20
        while not Authority.open(fleet).holds("own"):
            assert time.monotonic() < limit
            time.sleep(0.05)
        assert not Authority.open(fleet).holds("neighbour")
    finally:
        connection.close()


def test_bad_and_large_messages_cost_themselves(fleet: Path, tmp_path: Path) -> None:
    token = made(fleet, "hostile")
    for payload in (b"", b"\0" * 40, encode_enrol(Enrol(b"no request")), bytes(1 << 20)):
        connection = session(token, fleet, TOPICS.answer(token.id))
        connection.open(timeout=20)
        connection.publish(TOPICS.request(token.id), payload)
        time.sleep(0.2)
        connection.close()
    enrol(token, tmp_path / "hostile.pem", timeout=30)


def test_whoever_guesses_is_not_looked_at_for_a_while(tmp_path: Path) -> None:
    folder = new_fleet(tmp_path / "fleet")
    token = made(folder, "tea")
    with listening(folder):
        for guess in range(10):
            wrong = msgspec.structs.replace(token, secret=bytes([guess]) * 16)
            with pytest.raises(LoginRefusedError):
                session(wrong, folder, TOPICS.answer(token.id)).open(timeout=20)
        with pytest.raises(LoginRefusedError):
            session(token, folder, TOPICS.answer(token.id)).open(timeout=20)
    assert token.secret.hex() not in (tmp_path / "listen.log").read_text()


def test_a_token_that_waits_can_be_revoked(tmp_path: Path) -> None:
    folder = new_fleet(tmp_path / "fleet")
    made(folder, "tea")
    process = edge_fl("provision", "revoke", "tea", "--folder", folder, folder=tmp_path)
    assert "The token of 'tea' is revoked" in process.communicate(timeout=60)[0]
    assert Tokens(folder).kept == ()
    process = edge_fl("provision", "listen", "--once", "--folder", folder, folder=tmp_path)
    assert "No token waits" in process.communicate(timeout=60)[0]
    assert process.returncode == 15
    (folder / "tokens.json").write_text("{")
    process = edge_fl("provision", "token", "tea", "--folder", folder, folder=tmp_path)
    assert "is damaged" in process.communicate(timeout=60)[0]
    assert process.returncode == 21
