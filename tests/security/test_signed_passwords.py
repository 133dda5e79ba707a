"""Devices that log in with a password and sign with the key that they enrolled: a broker that knows no certificates."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from broker.doors import hashed
from broker.provision.authority import Authority
from broker.provision.mosquitto import write_mosquitto
from device_sim.emulation.mosquitto import Mosquitto, free_port, mosquitto_program
from edge_fl.core.bundle import Bundle
from edge_fl.transport.address import BrokerAddress
from tests.security.test_fleet import edge_fl, open_run, run, same, turned_away, wait_until_it_hears, weights

__all__ = ["open_run"]  # a fixture


def credentials(folder: Path, *names: str) -> Path:
    """A file of users as the broker reads it; each user's password is beside it."""
    for name in names:
        (folder / f"{name}.password").write_text(f"secret of {name}\n")
    file = folder / "passwords"
    file.write_text("".join(f"{name}:{hashed(f'secret of {name}')}\n" for name in names))
    return file


def login(name: str) -> list[str | Path]:
    return ["--user", name, "--password-file", f"{name}.password"]


@pytest.mark.matrix
@pytest.mark.mosquitto
def test_passwords_at_mosquitto_and_signed_messages(
    tmp_path: Path, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed (Debian: apt-get install mosquitto)")
    port, fleet = free_port(), tmp_path / "fleet"
    authority = Authority.create(fleet, hosts=["localhost"], port=port)
    passwords = credentials(tmp_path, "coordinator", "tea", "coffee")
    config = write_mosquitto(fleet, port=port, fleet="edge-fl").read_text()
    for certain in (
        "require_certificate true\n",
        "use_identity_as_username true\n",
        f"crlfile {fleet}/revoked.pem\n",
    ):
        assert certain in config
        config = config.replace(certain, "")
    config += f"password_file {passwords}\n" + ("user root\n" if os.geteuid() == 0 else "")
    devices = {name: ["--identity", authority.device(name), *login(name)] for name in ("tea", "coffee")}
    stranger = [
        "device",
        "--identity",
        authority.device("milk"),
        *login("tea"),
        "--data",
        "digits",
        "--state",
        "s",
    ]
    (tmp_path / "mosquitto").mkdir()
    with Mosquitto(tmp_path / "mosquitto", address=BrokerAddress("127.0.0.1", port, "mqtts"), config=config):
        refused = edge_fl(*stranger, folder=tmp_path)
        serve = [digits_bundle.root, "--identity", fleet / "coordinator.pem", *login("coordinator")]

        def come(_serving: int) -> None:
            wait_until_it_hears(tmp_path)
            wrong = ["--user", "coffee", "--password-file", "tea.password"]
            words = ["--identity", authority.device("coffee"), *wrong, "--data", "digits", "--state", "w"]
            guess = edge_fl("device", *words, folder=tmp_path)
            assert "password may be wrong" in guess.communicate(timeout=60)[0]

        run(tmp_path, serve, devices, come)
    assert turned_away(tmp_path) == {"login": 1}
    assert "The identity is milk's, and this device is called tea" in refused.communicate(timeout=60)[0]
    assert same(weights(tmp_path), open_run)


def test_the_embedded_broker_asks_for_both(
    tmp_path: Path, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    authority = Authority.create(tmp_path / "fleet", hosts=["localhost"], port=free_port())
    passwords = credentials(tmp_path, "tea", "coffee")
    devices = {name: ["--identity", authority.device(name), *login(name)] for name in ("tea", "coffee")}
    serve = [digits_bundle.root, "--broker", "embedded", "--identity", tmp_path / "fleet" / "broker.pem"]
    words = ["device", "--identity", authority.device("milk"), "--data", "digits", "--connect-timeout", "60"]
    stranger = edge_fl(*words, folder=tmp_path, XDG_STATE_HOME=str(tmp_path))
    run(tmp_path, [*serve, "--passwords", passwords], devices)
    assert "refuses this client" in stranger.communicate(timeout=60)[0]
    assert same(weights(tmp_path), open_run)
    status = json.loads(edge_fl("status", "run", "--json", folder=tmp_path).communicate(timeout=60)[0])
    assert "login" in {one["code"] for one in status["rejected"]}
