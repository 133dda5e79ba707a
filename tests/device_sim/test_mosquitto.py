"""Mosquitto as a process."""

import socket
from pathlib import Path

import pytest

from device_sim.emulation.mosquitto import Mosquitto, mosquitto_program
from edge_fl.core.errors import BrokerError


def test_where_it_is_not_installed_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_sim.emulation.mosquitto.mosquitto_program", lambda: None)
    with pytest.raises(BrokerError, match=r"apt-get install mosquitto") as refused:
        Mosquitto(tmp_path)
    assert refused.value.exit_code == 16


@pytest.mark.mosquitto
@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
def test_it_listens_where_it_says_until_it_is_killed_and_again_there(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as broker:
        where = (broker.address.host, broker.address.port)
        socket.create_connection(where, timeout=5).close()
        broker.kill()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(where, timeout=5)
        broker.start()
        socket.create_connection(where, timeout=5).close()
