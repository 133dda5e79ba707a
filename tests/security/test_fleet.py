"""A run over TLS with identities: real processes, by the command line alone, and the bits of an open run."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.provision.authority import Authority
from broker.run_folder import SETTINGS
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.bundle import Bundle
from edge_fl.core.errors import ConfigError
from tests.security.conftest import SecuredFleet, ServedFleet

RUN = ["--rounds=2", "--clients-per-round=2", "--min-clients=2", "--local-steps=3", "--deadline=120", "--seed=3"]


def edge_fl(*words: str | Path, folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edge_fl", *map(str, words)],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(
    folder: Path,
    serve: list[str | Path],
    devices: dict[str, list[str | Path]],
    watch: Callable[[int], None] = lambda _: None,
    options: Sequence[str] = (),
    **environment: str,
) -> str:
    """All that was printed; ``watch`` is told the coordinator's process id, and ``options`` overrule those of RUN."""
    started = [edge_fl("serve", *serve, *RUN, *options, "-o", "run", folder=folder, **environment)]
    try:
        watch(started[0].pid)
        started += agents(folder, devices, **environment)
    except BaseException:
        started[0].kill()
        raise
    return "\n".join(ended(started))


def wait_until_it_hears(folder: Path) -> None:
    """Until the coordinator hears the broker, and then writes its settings."""
    until = time.monotonic() + 120
    while not (folder / "run" / SETTINGS).exists():
        assert time.monotonic() < until
        time.sleep(0.1)


def turned_away(folder: Path) -> dict[str, int]:
    """How often each code was counted, as `edge-fl status` says."""
    status = edge_fl("status", "run", "--json", folder=folder)
    rejected = json.loads(status.communicate(timeout=60)[0])["rejected"]
    return {one["code"]: one["count"] for one in rejected}


def agents(folder: Path, devices: dict[str, list[str | Path]], **environment: str) -> list[subprocess.Popen[str]]:
    """One for each name and its options, which share the digits."""
    started = []
    for number, (name, words) in enumerate(devices.items()):
        own = ["--data", f"digits:{number}/{len(devices)}", "--state", f"state-{name}", "--once"]
        own += ["--connect-timeout", "120"]
        started.append(edge_fl("device", *own, *words, folder=folder, **environment))
    return started


def ended(processes: list[subprocess.Popen[str]]) -> list[str]:
    """What each printed, once all have ended well."""
    try:
        printed = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(printed)
    return printed


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "run" / "weights.safetensors")


@pytest.fixture(scope="module")
def open_run(tmp_path_factory: pytest.TempPathFactory, digits_bundle: Bundle) -> dict[str, np.ndarray]:
    """The weights of the same run without any door."""
    folder, port = tmp_path_factory.mktemp("open"), free_port()
    broker = f"mqtt://127.0.0.1:{port}"
    devices = {name: ["--broker", broker, "--id", name] for name in ("tea", "coffee")}
    run(folder, [digits_bundle.root, "--port", str(port)], devices)
    return weights(folder)


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[k], expected[k]) for k in found)


SENTENCES = (
    "it may want a certificate or a password",
    *["the identity may be revoked"] * 2,
    "it may not take this",
)
"""What each of the strangers says."""


def strangers(served: ServedFleet, other_authority: Authority) -> dict[str, list[str | Path]]:
    """Options of devices that may not come in: without a certificate, and with one that holds no more, or elsewhere."""
    authority, where = served.authority, ["--broker", str(served.address)]
    revoked = served.folder / "revoked.pem"
    revoked.write_bytes(authority.device("lost").read_bytes())
    authority.revoke("lost")
    if served.mosquitto is not None:
        served.mosquitto.reload()
    late, foreign = authority.device("late", days=0), other_authority.device("foreign")
    time.sleep(1.1)  # then the certificate of no day has run out
    ca = ["--ca", authority.folder / "ca.pem"]
    return {
        "nobody": [*where, *ca],
        "late": ["--identity", late],
        "lost": ["--identity", revoked],
        "foreign": [*where, *ca, "--cert", foreign],
    }


def test_a_fleet_with_identities_has_the_bits_of_an_open_run_and_strangers_stay_outside(
    served: ServedFleet, digits_bundle: Bundle, open_run: dict[str, np.ndarray], other_authority: Authority
) -> None:
    own = ["--data", "digits", "--connect-timeout", "120"]
    words, outside = strangers(served, other_authority), []

    def come(_serving: int) -> None:
        wait_until_it_hears(served.folder)
        for name, given in words.items():
            outside.append(edge_fl("device", *given, *own, "--state", f"outside-{name}", folder=served.folder))

    try:
        printed = run(served.folder, [digits_bundle.root, *served.serve], served.devices("tea", "coffee"), come)
        said = [process.communicate(timeout=120)[0] for process in outside]
    finally:
        for process in outside:
            process.kill()
    assert [process.returncode for process in outside] == [16] * len(outside), said
    for sentence, one in zip(SENTENCES, said, strict=True):
        assert sentence in one
    assert served.mosquitto is None or f"broker {served.address}" in printed
    assert same(weights(served.folder), open_run)
    counted = turned_away(served.folder)
    assert counted.keys() >= ({"handshake"} if served.mosquitto is not None else {"handshake", "login"})


@pytest.mark.matrix
def test_workers_come_in_by_identities_of_their_own(
    served: ServedFleet, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    folder, serve = served.authority.folder, [digits_bundle.root, *served.serve]
    if served.mosquitto is not None:  # the embedded broker lets them in by the coordinator's own key
        refused = edge_fl("serve", *serve, *RUN, "--workers=2", "-o", "none", folder=served.folder)
        said = refused.communicate(timeout=120)[0]
        assert refused.returncode == 15
        assert not (served.folder / "none").exists()
        assert "coordinator-worker-1.pem' is missing, by which the broker lets worker 1 in" in " ".join(
            said.split()
        )
        made = edge_fl("provision", "workers", "--count=2", "--folder", folder, folder=served.folder)
        assert "coordinator-worker-2.pem" in made.communicate(timeout=60)[0]
        deaf = edge_fl("serve", *serve, *RUN, "--workers=2", "-o", "none", folder=served.folder)
        said = " ".join(deaf.communicate(timeout=120)[0].split())  # Mosquitto has not read its list yet
        assert deaf.returncode == 16
        assert "lets worker 1 hear nothing on 'edge-fl/2/up/1/+/chunk/#'" in said
        served.mosquitto.reload()
    run(served.folder, serve, served.devices("tea", "coffee"), options=["--workers=2"])
    assert same(weights(served.folder), open_run)


@pytest.mark.matrix
def test_a_workers_identity_is_no_devices(served: ServedFleet) -> None:
    identity = served.authority.worker(1)
    device = edge_fl("device", "--identity", identity, "--data", "digits", folder=served.folder)
    assert "take the file of this device" in " ".join(device.communicate(timeout=60)[0].split())
    with pytest.raises(ConfigError, match="is not a device"):
        served.authority.device("coordinator-worker-1")


def test_passwords_are_in_no_log_and_no_record(
    tmp_path: Path, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    port, secrets = free_port(), {}
    for name in ("tea", "coffee"):
        made = edge_fl("provision", "password", name, folder=tmp_path)
        secrets[name] = made.communicate(timeout=60)[0].strip()
        (tmp_path / f"{name}.password").write_text(secrets[name] + "\n")
    assert (tmp_path / "passwords").stat().st_mode & 0o077 == 0
    devices: dict[str, list[str | Path]] = {
        name: ["--broker", f"mqtt://127.0.0.1:{port}", "--user", name, "--password-file", f"{name}.password"]
        for name in secrets
    }
    printed = run(tmp_path, [digits_bundle.root, "--passwords", "passwords", "--port", str(port)], devices)
    assert same(weights(tmp_path), open_run)
    for folder in ("run", "state-tea", "state-coffee"):
        for path in (tmp_path / folder).rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert not any(secret.encode() in content for secret in secrets.values()), path
    assert not any(secret in printed for secret in secrets.values())
    assert all(f"{name}" in printed for name in secrets)


def test_the_doctor_leaves_an_agent_with_an_identity_alone(secured: SecuredFleet, tmp_path: Path) -> None:
    file, state = secured.identity("tea"), tmp_path / "state"
    words = ["--identity", file, "--data", "digits:0/2", "--state", state]
    looked = edge_fl("device", "doctor", *words, "--json", folder=tmp_path)
    findings = {f["check"]: f for f in json.loads(looked.communicate(timeout=60)[0])}
    assert findings["broker"]["level"] == findings["certificate"]["level"] == "ok"
    agent = edge_fl("device", *words, folder=tmp_path)
    try:
        limit = time.monotonic() + 60
        while not (state / "identity.json").exists():
            assert time.monotonic() < limit
            time.sleep(0.05)
        looked = edge_fl("device", "doctor", *words, "--json", folder=tmp_path)
        findings = {f["check"]: f for f in json.loads(looked.communicate(timeout=60)[0])}
        assert findings["broker"]["level"] == "warning"
        assert "would end its session" in findings["broker"]["sentence"]
        assert agent.poll() is None
    finally:
        agent.kill()


@pytest.mark.matrix
def test_a_second_coordinator_ends_and_the_first_run_has_its_own_bits(
    served: ServedFleet, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    """Mosquitto keeps one session of the two, and the embedded broker lets its own coordinator alone hear devices."""
    begun = served.folder / "run" / "config.json"
    own = ["--broker", str(served.address), "--identity", served.authority.folder / "coordinator.pem"]
    code, sentence = 19, "Another coordinator serves this fleet"
    if served.mosquitto is None:
        code, sentence = 16, "is another coordinator's own"

    def second(_first: int) -> None:
        limit = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < limit
            time.sleep(0.05)
        other = edge_fl("serve", digits_bundle.root, *own, *RUN, "-o", "second", folder=served.folder)
        said = " ".join(other.communicate(timeout=120)[0].split())
        assert other.returncode == code, said
        assert sentence in said

    run(served.folder, [digits_bundle.root, *served.serve], served.devices("tea", "coffee"), second)
    assert same(weights(served.folder), open_run)


@pytest.mark.parametrize("served", [pytest.param("mosquitto", marks=pytest.mark.mosquitto)], indirect=True)
def test_secure_aggregation_with_identities_has_the_weights_of_an_open_run(
    served: ServedFleet, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    secure = ["--secure-aggregation", "--secure-holders", "2", "--quorum", "1"]
    run(served.folder, [digits_bundle.root, *served.serve, *secure], served.devices("tea", "coffee"))
    found = weights(served.folder)
    assert found.keys() == open_run.keys()
    assert all(np.abs(found[name] - open_run[name]).max() < 1e-6 for name in found)
    assert not same(found, open_run)  # rounded to the ring
