"""Who comes in, and what who came in may do, on a broker that knows identities."""

import datetime as dt
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.doors import Doors
from broker.embedded import EmbeddedBroker
from broker.provision import issuer
from broker.provision.authority import Authority
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.errors import BrokerError
from edge_fl.identity.file import read_identity
from edge_fl.transport.access import Access
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.transport.interface import Connected, Disconnected, Event, Message
from edge_fl.wire.messages import Topics
from tests.security.conftest import SecuredFleet, mosquitto_of

TOPICS = Topics()


class Client:
    """A session that says and hears whatever the broker lets it."""

    def __init__(self, address: BrokerAddress, id: str, *subscriptions: str, will: str | None = None) -> None:
        self._connection = Connection(
            address=address,
            client_id=id,
            subscriptions=subscriptions or [TOPICS.all],
            will=None if will is None else (will, b"will"),
        )

    def __enter__(self) -> "Client":
        self._connection.open(timeout=30)
        while not isinstance(
            self._connection.next(30), Connected
        ):  # a list of revoked ones may have been read first
            pass
        return self

    def __exit__(self, *_exception: object) -> None:
        self._connection.close()

    def say(self, topic: str, payload: bytes) -> None:
        left, until = self._connection.publish(topic, payload), time.monotonic() + 10
        while not left() and time.monotonic() < until:
            time.sleep(0.01)

    def next(self, timeout: float = 30) -> Event | None:
        return self._connection.next(timeout)

    def break_off(self) -> None:
        """As a cable that is pulled."""
        self._connection._client._sock_close()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_fl.transport.connection._RETRY_SECONDS", (0.1, 1))


def refused(address: BrokerAddress, *, timeout: float = 10) -> str:
    connection = Connection(address=address, client_id="tea", subscriptions=[TOPICS.all])
    with pytest.raises(BrokerError) as refusal:
        connection.open(timeout=timeout)
    connection.close()
    return str(refusal.value)


def test_a_device_speaks_and_hears_on_its_own_topics_alone(secured: SecuredFleet) -> None:
    tea, coffee = secured.of(secured.identity("tea")), secured.of(secured.identity("coffee"))
    everything = f"{TOPICS.root}/#"
    forged = [TOPICS.up("coffee"), TOPICS.down("coffee"), TOPICS.all, f"{TOPICS.up('coffee')}/chunk/{'0' * 64}/0"]
    forged += [f"{TOPICS.root}/up/7/coffee", f"{TOPICS.root}/up/tea", f"{TOPICS.root}/up/0/7/tea"]
    of_a_worker = f"{TOPICS.root}/up/7/tea"
    with (
        Client(secured.coordinator, "coordinator-1", everything) as coordinator,
        Client(coffee, "coffee", TOPICS.all, f"{TOPICS.down('coffee')}/#") as victim,
    ):
        for topic in forged:  # for which Mosquitto ends the session
            with Client(tea, "tea", TOPICS.down("tea")) as device:
                device.say(topic, b"forged")
        with Client(tea, "tea", TOPICS.down("tea")) as device:
            device.say(TOPICS.up("tea"), b"own")
            assert coordinator.next() == Message(TOPICS.up("tea"), b"own")
            device.say(of_a_worker, b"own")
            assert coordinator.next() == Message(of_a_worker, b"own")
            coordinator.say(TOPICS.down("coffee"), b"for coffee")
            coordinator.say(TOPICS.down("tea"), b"for tea")
            assert device.next() == Message(TOPICS.down("tea"), b"for tea")
            assert device.next(0.3) is None
        assert victim.next() == Message(TOPICS.down("coffee"), b"for coffee")


@pytest.mark.mosquitto
def test_mosquitto_names_a_refused_topic_in_its_log_file(tmp_path: Path) -> None:
    """With ``log_type all``. Mosquitto publishes no such line, so the coordinator cannot count what it refuses."""
    authority = Authority.create(tmp_path / "fleet", hosts=["127.0.0.1"], port=free_port())
    with mosquitto_of(authority, free_port(), "log_type all") as mosquitto:
        access = read_identity(authority.device("tea")).access
        with Client(replace(mosquitto.address, access=access), "tea", TOPICS.down("tea")) as device:
            device.say(TOPICS.up("coffee"), b"forged")
        log = tmp_path / "mosquitto" / "mosquitto.log"
        denied, until = f"Denied PUBLISH from tea (d0, q1, r0, m2, '{TOPICS.up('coffee')}'", time.monotonic() + 10
        while denied not in log.read_text() and time.monotonic() < until:
            time.sleep(0.05)
    assert denied in log.read_text()


@pytest.mark.parametrize(
    "topic", ["#", "+/+/down/coffee", f"{TOPICS.root}/down/+", TOPICS.up("tea"), TOPICS.down("coffee")]
)
def test_a_neighbours_topics_are_not_heard(secured: SecuredFleet, topic: str) -> None:
    """The embedded broker refuses the subscription; Mosquitto takes it, and sends nothing."""
    tea = secured.of(secured.identity("tea"))
    with (
        Client(secured.coordinator, "coordinator-1") as coordinator,
        suppress(BrokerError),
        Client(tea, "tea", topic) as device,
    ):
        coordinator.say(TOPICS.down("coffee"), b"secret")
        assert device.next(0.5) is None


def test_a_will_is_published_on_own_topics_alone(secured: SecuredFleet) -> None:
    tea = secured.of(secured.identity("tea"))
    with Client(secured.coordinator, "coordinator-1", f"{TOPICS.root}/up/#") as coordinator:
        with suppress(BrokerError), Client(tea, "tea", will=TOPICS.up("coffee")) as device:  # Mosquitto refuses it
            device.break_off()
        assert coordinator.next(1) is None
        with Client(tea, "tea", will=TOPICS.up("tea")) as device:
            device.break_off()
            assert coordinator.next() == Message(TOPICS.up("tea"), b"will")


def test_nobody_ends_a_neighbours_session(secured: SecuredFleet, other_authority: Authority) -> None:
    tea, coffee = secured.of(secured.identity("tea")), secured.of(secured.identity("coffee"))
    strangers = [replace(tea, access=replace(tea.access, cert=None)), secured.of(other_authority.device("coffee"))]
    with Client(coffee, "coffee", TOPICS.down("coffee")) as victim:
        with Client(tea, "coffee", TOPICS.down("tea")) as evil:
            evil.say(TOPICS.up("tea"), b"x")
        for stranger in strangers:
            with pytest.raises(BrokerError):
                Client(replace(stranger, access=replace(stranger.access, ca=tea.access.ca)), "coffee").__enter__()
        assert not isinstance(victim.next(0.5), Disconnected)


def test_strangers_stay_outside(secured: SecuredFleet, other_authority: Authority) -> None:
    device = secured.of(secured.identity("tea"))
    trusting = Access(ca=device.access.ca)
    assert "it may want a certificate or a password" in refused(replace(device, access=trusting))
    assert "may be revoked, expired or another fleet's" in refused(
        replace(device, access=replace(read_identity(other_authority.device("tea")).access, ca=trusting.ca))
    )
    assert "it may want mqtts:// (TLS)" in refused(replace(device, scheme="mqtt", access=Access()), timeout=1)
    assert "refuses this client" in refused(
        replace(device, access=replace(trusting, user="$coordinator", password="guessed"))
    )


def test_a_device_waits_for_a_broker_behind_a_proxy_that_leaves_the_handshake(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    authority = Authority.create(tmp_path / "fleet", hosts=["127.0.0.1"], port=port, enrol_port=free_port())
    own = authority.folder / "broker.pem"
    address = BrokerAddress(
        "127.0.0.1", port, scheme="mqtts", access=read_identity(authority.device("tea")).access
    )
    end = Connection(address=address, client_id="tea", subscriptions=[TOPICS.all])
    with ThreadPoolExecutor() as elsewhere:
        with socket.create_server(("127.0.0.1", port)) as proxy:
            opened = elsewhere.submit(end.open, timeout=20)
            for _ in range(2):
                shaking, _ = proxy.accept()
                shaking.recv(4096)
                shaking.close()
        with EmbeddedBroker(port=port, doors=Doors(cert=own, ca=own)):
            opened.result()
            assert isinstance(end.next(1), Connected)
            end.close()
    said = [record.getMessage() for record in caplog.records if record.name.endswith("connection")]
    assert len(said) == 1
    assert said[0].startswith(f"waiting for a broker, for up to 20 s: What listens at {address} breaks off TLS")


def test_an_identity_that_ran_out_or_was_revoked_is_refused(secured: SecuredFleet) -> None:
    late = secured.of(secured.authority.device("late", days=0))
    time.sleep(1.1)
    assert "may be revoked, expired or another fleet's" in refused(late)
    file = secured.identity("tea")
    kept = file.with_name("kept.pem")
    kept.write_bytes(file.read_bytes())
    device = secured.of(kept)
    with Client(device, "tea") as connected:
        secured.authority.revoke("tea")
        secured.reload()
        time.sleep(0.5)
        connected.break_off()
        said = ""
        while "before the broker answered: the identity may be revoked" not in said:
            if isinstance(event := connected.next(), Disconnected):
                said = event.reason
            if isinstance(event, Connected):  # the list was not read yet
                connected.break_off()
    assert "may be revoked, expired or another fleet's" in refused(device)
    again = secured.of(secured.identity("tea"))
    secured.reload()
    time.sleep(0.5)
    with Client(again, "tea"):
        pass
    assert "may be revoked, expired or another fleet's" in refused(device)


def test_a_revocation_holds_although_the_clock_went_back(
    secured: SecuredFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL follows the latest of the lists that it read, so a list must never look older than the one before."""

    class Earlier(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
            return dt.datetime.now(tz) - dt.timedelta(hours=1)

    kept = secured.identity("tea").rename(secured.authority.folder / "kept.pem")
    with Client(secured.of(kept), "tea"):
        pass
    monkeypatch.setattr(issuer, "dt", SimpleNamespace(datetime=Earlier, timedelta=dt.timedelta, UTC=dt.UTC))
    secured.authority.revoke("tea")
    secured.reload()
    time.sleep(0.5)
    assert "may be revoked, expired or another fleet's" in refused(secured.of(kept))


def test_the_embedded_broker_counts_certificates_that_it_refuses(
    tmp_path: Path, other_authority: Authority
) -> None:
    authority = Authority.create(tmp_path / "fleet", hosts=["127.0.0.1"], port=free_port())
    own, files = authority.folder / "broker.pem", [authority.device("late", days=0), other_authority.device("tea")]
    kept = tmp_path / "kept.pem"
    kept.write_bytes(authority.device("lost").read_bytes())
    authority.revoke("lost")
    time.sleep(1.1)  # then the certificate that holds for no day has run out
    trusted, why = authority.folder / "ca.pem", []
    with EmbeddedBroker(port=0, doors=Doors(cert=own, ca=own)) as broker:
        for file in (*files, kept):
            access = replace(read_identity(file).access, ca=trusted)
            assert "may be revoked, expired or another fleet's" in refused(replace(broker.address, access=access))
            ((found, counted),) = broker.turned_away.take().items()
            assert found == ("", "handshake")
            assert counted.times >= 1
            why.append(counted.reason)
    assert [reason.split(": ")[1] for reason in why] == [
        "certificate has expired.",
        "self-signed certificate in certificate chain.",
        "certificate revoked.",
    ]


def test_a_device_trusts_no_other_broker(secured: SecuredFleet, other_authority: Authority) -> None:
    device = secured.of(secured.identity("tea"))
    other = replace(device, access=replace(device.access, ca=other_authority.folder / "ca.pem"))
    assert "does not come from" in refused(other)
    foreign = read_identity(other_authority.device("tea")).access
    assert "is not of the fleet of" in refused(replace(device, access=foreign))
    assert "does not come from an authority of this system" in refused(
        replace(device, access=replace(device.access, ca=None))
    )


def test_a_name_that_the_brokers_certificate_lacks(tmp_path: Path) -> None:
    from broker.doors import Doors
    from broker.embedded import EmbeddedBroker

    authority = Authority.create(tmp_path, hosts=["broker.example.org"], port=free_port())
    own = tmp_path / "broker.pem"
    with EmbeddedBroker(port=0, doors=Doors(cert=own, ca=own)) as broker:
        address = replace(broker.address, access=read_identity(authority.device("tea")).access)
        assert "is another host's" in refused(address)
