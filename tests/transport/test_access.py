"""How a broker is reached, and what opens its door."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_sim.emulation.mosquitto import Mosquitto, free_port, mosquitto_program
from edge_fl.core.errors import BrokerError, ConfigError
from edge_fl.identity.file import Identity, identity_text, read_identity
from edge_fl.transport.access import PASSWORD, Access, password_of
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Message

pytest.importorskip("cryptography")

from broker.provision.authority import Authority


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mqtt://host", "mqtt://host:1883"),
        ("mqtts://host", "mqtts://host:8883"),
        ("wss://host", "wss://host:443/mqtt"),
        ("wss://host:8884/a/b", "wss://host:8884/a/b"),
        ("mqtts://[::1]:1", "mqtts://[::1]:1"),
        ("mqtts://a,b:1,[::1]", "mqtts://a:8883,b:1,[::1]:8883"),
        ("wss://a,b/x", "wss://a:443,b:443/x"),
    ],
)
def test_addresses(url: str, text: str) -> None:
    assert str(BrokerAddress.parse(url)) == text


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "mqtt://",
        "http://host",
        "mqtt://host/x",
        "mqtts://host?x",
        "mqtt://host:0",
        "ws://host",
        "mqtts://h:99999",
        "mqtts://a,",
        "mqtts://a,b:0",
        "mqtts://a,b?x",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="broker address"):
        BrokerAddress.parse(url)


def test_a_password_is_neither_taken_from_an_address_nor_shown() -> None:
    with pytest.raises(ConfigError) as refusal:
        BrokerAddress.parse("mqtts://me:secret@host")
    assert "secret" not in str(refusal.value)
    address = BrokerAddress.parse("mqtts://host", Access(user="me", password="secret"))
    assert "secret" not in f"{address} {address!r} {address.access!r}"


@pytest.mark.parametrize(
    ("url", "access", "sentence"),
    [
        ("mqtt://127.0.0.1", {"ca": Path("ca.pem")}, "Certificates need TLS"),
        ("mqtt://192.0.2.1", {"user": "me", "password": "x"}, "would carry the password unencrypted"),
        ("mqtt://broker", {"user": "me", "password": "x"}, "would carry the password unencrypted"),
        ("mqtts://broker", {"key": Path("key.pem")}, "A key needs its certificate"),
        ("mqtts://broker", {"user": "me"}, "go together"),
        ("mqtts://broker", {"password": "x"}, "go together"),
    ],
)
def test_what_does_not_fit(url: str, access: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        BrokerAddress.parse(url, Access(**access))  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_a_password_may_stay_on_this_machine(host: str) -> None:
    assert BrokerAddress.parse(f"mqtt://{host}", Access(user="me", password="x")).loopback


def test_insecure_lets_a_password_go(tmp_path: Path) -> None:
    assert not BrokerAddress.parse("mqtt://broker", Access(user="me", password="x", insecure=True)).loopback


def test_where_a_password_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p").write_text("first line\nsecond\n")
    monkeypatch.setenv(PASSWORD, "of the environment")
    assert password_of(tmp_path / "p") == "first line"
    assert password_of(None) == "of the environment"
    monkeypatch.delenv(PASSWORD)
    assert password_of(None) is None
    for content in (b"", b"\n", b"\xff\n", b"a\0b\n", b"x" * 70_000):
        (tmp_path / "p").write_bytes(content)
        with pytest.raises(ConfigError, match=r"'.*p' holds no"):
            password_of(tmp_path / "p")
    with pytest.raises(ConfigError, match="cannot be read"):
        password_of(tmp_path / "nowhere")


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "fleet", hosts=["localhost"], port=1)
    tea, milk = authority.device("tea"), authority.device("milk")
    (tmp_path / "none").write_text("none")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", tea, "-out", locked, "-passout", "pass:x"],
        check=True,
        capture_output=True,
    )
    for access, sentence in [
        (Access(ca=tmp_path / "none"), "'.*none' holds no certificate"),
        (Access(ca=tmp_path / "nowhere"), "cannot be read"),
        (Access(cert=tmp_path / "none"), "'.*none' holds no certificate.* copy it again"),
        (Access(cert=authority.folder / "ca.pem"), "'.*ca.pem' holds no certificate"),
        (Access(cert=tea, key=milk), "hold no certificate in PEM form with the key that fits"),
        (Access(cert=tea, key=locked), "is encrypted"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            access.context()


def test_a_token_is_no_identity(tmp_path: Path) -> None:
    (tmp_path / "tea.token").write_text("edge-fl-enrol:1:AAAA\n")
    with pytest.raises(ConfigError, match=r"tea.token' is a token: .*edge-fl device enrol --token-file"):
        read_identity(tmp_path / "tea.token")


def test_an_identity_says_who_and_where(tmp_path: Path) -> None:
    file = tmp_path / "i"
    kinds = ("CERTIFICATE", "PRIVATE KEY", "CERTIFICATE")
    pem = "".join(f"-----BEGIN {kind}-----\nMII=\n-----END {kind}-----\n" for kind in kinds)
    file.write_text(identity_text("tea", "mqtts://host:8883", pem=pem))
    assert read_identity(file) == Identity(file, "tea", frozenset(["MII="]), "mqtts://host:8883")
    assert read_identity(file).access.identity == "tea"


@pytest.fixture
def websockets(tmp_path: Path) -> Iterator[BrokerAddress]:
    """Mosquitto behind ``wss://``, where it is built with WebSockets."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    authority = Authority.create(tmp_path / "fleet", hosts=["127.0.0.1"], port=1)
    own = authority.folder / "broker.pem"
    address = BrokerAddress("127.0.0.1", free_port(), "wss", "/mqtt", Access(ca=authority.folder / "ca.pem"))
    # Mosquitto 2.0 ends if WebSockets are all that it listens on.
    config = f"listener {free_port()} 127.0.0.1\n"
    config += f"listener {address.port} 127.0.0.1\nprotocol websockets\ncertfile {own}\nkeyfile {own}\n"
    config += "allow_anonymous true\n"
    config += "user root\n" if os.geteuid() == 0 else ""
    with Mosquitto(tmp_path, address=address, config=config) as mosquitto:
        yield mosquitto.address


@pytest.mark.mosquitto
def test_a_websocket_in_tls(websockets: BrokerAddress) -> None:
    connection = Connection(address=websockets, client_id="tea", subscriptions=["a/#"])
    connection.open(timeout=20)
    try:
        assert isinstance(connection.next(10), Connected)
        connection.publish("a/b", bytes(300_000))
        assert connection.next(20) == Message("a/b", bytes(300_000))
    finally:
        connection.close()
    stranger = Connection(address=replace(websockets, access=Access()), client_id="tea", subscriptions=["a/#"])
    with pytest.raises(BrokerError, match="does not come from an authority of this system"):
        stranger.open(timeout=5)
