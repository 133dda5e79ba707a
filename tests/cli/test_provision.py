"""`edge-fl provision` as an operator uses it."""

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography")


def provision(*words: str, folder: Path, code: int = 0) -> str:
    command = [sys.executable, "-m", "edge_fl", "provision", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def verified(folder: Path, file: str) -> bool:
    """As OpenSSL sees it, with the list of revoked ones."""
    command = ["openssl", "verify", "-crl_check", "-CAfile", "fleet/ca.pem", "-CRLfile", "fleet/revoked.pem", file]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def listed(folder: Path) -> list[tuple[str, bool]]:
    return [(held["name"], held["revoked"]) for held in json.loads(provision("list", "--json", folder=folder))]


def test_from_nothing_to_a_fleet_and_back(tmp_path: Path) -> None:
    said = provision("init", "--host", "broker.example.org", "--host", "192.0.2.1", folder=tmp_path)
    assert "mqtts://broker.example.org:8883" in said
    provision("device", "tea", "coffee", folder=tmp_path)
    secret = [tmp_path / "fleet" / name for name in ("ca.key", "broker.pem", "coordinator.pem", "devices/tea.pem")]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    files = [str(path.relative_to(tmp_path)) for path in secret[1:]]
    assert all(verified(tmp_path, file) for file in files)
    old = tmp_path / "old.pem"
    old.write_bytes(secret[3].read_bytes())
    provision("device", "tea", folder=tmp_path)
    assert not verified(tmp_path, "old.pem")
    assert verified(tmp_path, "fleet/devices/tea.pem")
    provision("revoke", "coffee", folder=tmp_path)
    assert not (tmp_path / "fleet" / "devices" / "coffee.pem").exists()
    assert listed(tmp_path) == [
        ("broker", False),
        ("coordinator", False),
        ("tea", True),
        ("coffee", True),
        ("tea", False),
    ]
    assert "revoked" in provision("list", folder=tmp_path)


def test_rotation_keeps_whose_file_it_is(tmp_path: Path) -> None:
    provision("init", "--host", "localhost", folder=tmp_path)
    broker = tmp_path / "fleet" / "broker.pem"
    before = broker.read_bytes()
    broker.chmod(0o640)
    provision("rotate", "broker", folder=tmp_path)
    assert broker.read_bytes() != before
    assert stat.S_IMODE(broker.stat().st_mode) == 0o640
    assert verified(tmp_path, "fleet/broker.pem")
    listing = subprocess.run(
        ["openssl", "x509", "-in", broker, "-noout", "-ext", "subjectAltName"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "DNS:localhost" in listing.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["init", "--host", "a b"], "is no host"),
        (["init", "--host", ""], "is no host"),
        (["device", "a/b"], "An id has 1 to 64 letters"),
        (["device", "coordinator"], "is not a device"),
        (["device", "tea", "--folder", "nowhere"], "holds no certificate authority.*provision init"),
        (["revoke", "nobody"], "Nobody is called 'nobody'"),
        (["rotate", "nobody"], "Nobody is called 'nobody'"),
        (["password", "a:b"], "An id has 1 to 64 letters"),
    ],
)
def test_what_it_refuses(tmp_path: Path, words: list[str], sentence: str) -> None:
    if words[0] != "init":
        provision("init", "--host", "localhost", folder=tmp_path)
    code = 21 if "nowhere" in words else 15
    assert re.search(sentence, provision(*words, folder=tmp_path, code=code))


def test_an_authority_is_not_made_twice_and_its_damage_is_said(tmp_path: Path) -> None:
    provision("init", "--host", "localhost", folder=tmp_path)
    key = (tmp_path / "fleet" / "ca.key").read_bytes()
    assert "holds a certificate authority" in provision("init", "--host", "x", folder=tmp_path, code=21)
    assert (tmp_path / "fleet" / "ca.key").read_bytes() == key
    for name in ("issued.json", "ca.pem", "ca.key"):
        held = (tmp_path / "fleet" / name).read_bytes()
        (tmp_path / "fleet" / name).write_bytes(held[: len(held) // 2])
        assert "is damaged" in provision("device", "tea", folder=tmp_path, code=21)
        (tmp_path / "fleet" / name).write_bytes(held)


def test_passwords_of_several(tmp_path: Path) -> None:
    first, _, again = (provision("password", name, folder=tmp_path).strip() for name in ("tea", "coffee", "tea"))
    assert first != again
    lines = (tmp_path / "passwords").read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["coffee", "tea"]
    assert not any(secret in (tmp_path / "passwords").read_text() for secret in (first, again))
    assert (tmp_path / "passwords").stat().st_mode & 0o077 == 0
