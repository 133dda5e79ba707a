"""Users and passwords: at the embedded broker, whose file is Mosquitto's, and at Mosquitto."""

import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from broker.doors import OF_THE_HOUSE, Doors, Login, hashed
from broker.embedded import EmbeddedBroker
from broker.turned_away import AtDoor
from device_sim.emulation.mosquitto import Mosquitto, free_port, mosquitto_program
from edge_fl.core.errors import BrokerError, ConfigError
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.wire.messages import Topics

TOPICS = Topics()


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    file.write_text(f"tea:{hashed('right')}\ncoffee:{hashed('other')}\n")
    return file


@pytest.fixture(params=["embedded", pytest.param("mosquitto", marks=pytest.mark.mosquitto)])
def address(request: pytest.FixtureRequest, passwords: Path, tmp_path: Path) -> Iterator[BrokerAddress]:
    """A broker on this machine that asks for a password."""
    if request.param == "embedded":
        with EmbeddedBroker(port=0, doors=Doors(passwords=passwords)) as broker:
            yield replace(broker.address, access=Access())
        return
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    where = BrokerAddress("127.0.0.1", free_port())
    config = f"listener {where.port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\nuser root\n"
    with Mosquitto(tmp_path, address=where, config=config) as mosquitto:
        yield mosquitto.address


def outcome(address: BrokerAddress, user: str | None, password: str | None) -> str:
    known = replace(address, access=Access(user=user, password=password))
    connection = Connection(address=known, client_id=user or "x", subscriptions=[TOPICS.all])
    try:
        connection.open(timeout=10)
    except BrokerError as error:
        return str(error)
    finally:
        connection.close()
    return "in"


def test_who_knows_the_password_comes_in(address: BrokerAddress) -> None:
    assert outcome(address, "tea", "right") == "in"
    for user, password in [("tea", "wrong"), ("coffee", "right"), ("nobody", "right"), (None, None)]:
        said = outcome(address, user, password)
        assert "refuses this client" in said
        assert "--password-file" in said
        assert password is None or f"'{password}'" not in said


def test_who_is_taken_out_of_the_file_stays_out(passwords: Path) -> None:
    with EmbeddedBroker(port=0, doors=Doors(passwords=passwords)) as broker:
        assert outcome(broker.address, "tea", "right") == "in"
        passwords.write_text(f"milk:{hashed('new')}\n")
        assert "refuses" in outcome(broker.address, "tea", "right")
        assert outcome(broker.address, "milk", "new") == "in"
        passwords.unlink()
        assert "refuses" in outcome(broker.address, "milk", "new")
        assert outcome(broker.address, broker.address.access.user, broker.address.access.password) == "in"


def test_only_the_key_of_the_house_makes_a_coordinator(passwords: Path) -> None:
    doors = Doors(passwords=passwords)
    assert doors.identity(Login(OF_THE_HOUSE, doors.key_of_the_house, None)) == OF_THE_HOUSE
    for password in (None, "", "right", Doors(passwords=passwords).key_of_the_house):
        assert doors.identity(Login(OF_THE_HOUSE, password, None)) is None
    passwords.write_text(f"{OF_THE_HOUSE}:{hashed('mine')}\na/b:{hashed('mine')}\n+:{hashed('mine')}\n")
    for user in (OF_THE_HOUSE, "a/b", "+"):
        assert doors.identity(Login(user, "mine", None)) is None


@pytest.mark.parametrize(
    "line",
    [
        "tea",
        "tea:right",
        "tea:$6$abc$def",
        "tea:$7$0$AAAAAAAA$" + "A" * 88,
        "tea:$7$10$AAAAAAAA$" + "A" * 86,
        "\xff",
    ],
)
def test_other_password_files_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "p").write_bytes(f"\n{line}\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"Line 2 of|holds no text"):
        Doors(passwords=tmp_path / "p")


@pytest.mark.mosquitto
def test_files_of_mosquitto_passwd(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.touch()
    subprocess.run(["mosquitto_passwd", "-b", file, "tea", "right"], check=True, capture_output=True)
    doors = Doors(passwords=file)
    assert doors.identity(Login("tea", "right", None)) == "tea"
    assert doors.identity(Login("tea", "wrong", None)) is None


def test_who_says_nothing_or_too_much_is_put_out(passwords: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.embedded._CONNECT_SECONDS", 0.3)
    with EmbeddedBroker(port=0, doors=Doors(passwords=passwords)) as broker:
        where = (broker.address.host, broker.address.port)
        with socket.create_connection(where, timeout=20) as mute:
            assert mute.recv(1) == b""
        known = replace(broker.address, access=Access(user="tea", password="right"))
        connect = b"\x10\x19\x00\x04MQTT\x04\xc2\x00\x3c\x00\x01x\x00\x03tea\x00\x05right"
        with socket.create_connection(where, timeout=20) as large:
            large.sendall(connect)
            assert large.recv(4) == b"\x20\x02\x00\x00"
            topic = TOPICS.up("tea").encode()
            large.sendall(b"\x30\xff\xff\xff\x7f" + len(topic).to_bytes(2, "big") + topic + bytes(1000))  # 256 MiB
            assert large.recv(1) == b""
        assert outcome(broker.address, known.access.user, known.access.password) == "in"


def test_who_is_turned_away_is_counted(passwords: Path) -> None:
    with EmbeddedBroker(port=0, doors=Doors(passwords=passwords)) as broker:
        for _ in range(3):
            assert "refuses" in outcome(broker.address, "tea", "wrong")
        known = replace(broker.address, access=Access(user="tea", password="right"))
        connection = Connection(address=known, client_id="tea", subscriptions=[TOPICS.all])
        connection.open(timeout=10)
        connection.publish(TOPICS.up("coffee"), b"forged")
        counted, until = dict(broker.turned_away.take()), time.monotonic() + 10
        while ("tea", "topic") not in counted and time.monotonic() < until:
            time.sleep(0.05)
            counted |= broker.turned_away.take()
        connection.close()
    assert counted["", "login"] == AtDoor(3, "'tea' from 127.0.0.1 had no certificate or password of this fleet.")
    assert counted["tea", "topic"] == AtDoor(1, "It may not publish on 'edge-fl/2/up/0/coffee'.")


def test_of_clients_that_come_at_once_with_one_id_one_stays(passwords: Path) -> None:
    """The others are put out: none is left that hears nothing, or hears what is another's."""
    connect = b"\x10\x19\x00\x04MQTT\x04\xc2\x00\x3c\x00\x01x\x00\x03tea\x00\x05right"
    with EmbeddedBroker(port=0, doors=Doors(passwords=passwords)) as broker:
        where = (broker.address.host, broker.address.port)
        for _ in range(10):
            with ExitStack() as stack:
                clients = [stack.enter_context(socket.create_connection(where, timeout=20)) for _ in range(8)]
                for client in clients:
                    client.sendall(connect)
                for client in clients:
                    assert client.recv(4) == b"\x20\x02\x00\x00"
                left = clients
                while len(left) > 1:
                    ended, _, _ = select.select(left, [], [], 20)
                    assert ended, f"{len(left)} are left"
                    assert [client.recv(1) for client in ended] == [b""] * len(ended)
                    left = [client for client in left if client not in ended]
                left[0].sendall(b"\xc0\x00")
                assert left[0].recv(2) == b"\xd0\x00"
