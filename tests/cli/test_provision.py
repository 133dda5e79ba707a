"""`edge-fl provision` as an operator uses it."""

import json
import re
import stat
import subprocess
from pathlib import Path

import pytest

from edge_fl.identity.file import read_identity
from edge_fl.identity.signing import SigningKey, newest_key
from tests.cli.in_process import command

pytest.importorskip("cryptography")


def provision(*words: str, folder: Path, code: int = 0) -> str:
    done = command("provision", *words, folder=folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def verified(folder: Path, file: str) -> bool:
    """As OpenSSL sees it, with the list of revoked ones."""
    asked = ["openssl", "verify", "-crl_check", "-CAfile", "fleet/ca.pem", "-CRLfile", "fleet/revoked.pem", file]
    return subprocess.run(asked, cwd=folder, capture_output=True, check=False).returncode == 0


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
        (
            ["init", "--host", "localhost:8883"],
            "is more than a host: give its name or address alone, and see --port",
        ),
        (["init", "--host", "mqtts://localhost"], "is more than a host"),
        (["init", "--host", "0.0.0.0"], "No device can connect to '0.0.0.0'"),
        (["revoke", "coordinator"], "'coordinator' is not revoked, .*provision rotate coordinator"),
        (["revoke", "broker"], "'broker' is not revoked, .*provision rotate broker"),
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
    assert "is of a certificate authority" in provision("init", "--host", "x", folder=tmp_path, code=21)
    assert (tmp_path / "fleet" / "ca.key").read_bytes() == key
    for name in ("issued.json", "ca.pem", "ca.key"):
        held = (tmp_path / "fleet" / name).read_bytes()
        (tmp_path / "fleet" / name).write_bytes(held[: len(held) // 2])
        damaged = provision("device", "tea", folder=tmp_path, code=21)
        assert damaged == f"edge-fl: 'fleet/{name}' is damaged: restore it from your copy of the folder.\n"
        (tmp_path / "fleet" / name).write_bytes(held)


@pytest.mark.parametrize("lost", ["ca.key", "ca.pem", "issued.json"])
def test_what_is_lost_is_restored_and_never_made_anew(lost: str, tmp_path: Path) -> None:
    """A new authority in its place would orphan every device."""
    provision("init", "--host", "localhost", folder=tmp_path)
    provision("token", "tea", folder=tmp_path)
    fleet = tmp_path / "fleet"
    (fleet / lost).unlink()
    left = {path.name: path.read_bytes() for path in fleet.iterdir() if path.is_file()}

    for words in (["device", "tea"], ["list"], ["listen"], ["revoke", "tea"]):
        said = provision(*words, folder=tmp_path, code=21)
        assert f"'fleet/{lost}' is missing, and identities hang on it: restore it" in said
        assert "init" not in said
    assert "choose another folder" in provision("init", "--host", "localhost", folder=tmp_path, code=21)
    kept = {path.name: path.read_bytes() for path in fleet.iterdir() if path.is_file()}
    assert {name: kept[name] for name in left} == left


def test_a_revoked_name_comes_in_again_by_a_new_identity_alone(tmp_path: Path) -> None:
    provision("init", "--host", "localhost", folder=tmp_path)
    provision("device", "tea", folder=tmp_path)
    provision("revoke", "tea", folder=tmp_path)
    assert "provision device tea` lets it in again" in provision("rotate", "tea", folder=tmp_path, code=15)
    provision("device", "tea", folder=tmp_path)


def test_a_token_waits_no_more_once_its_name_has_an_identity(tmp_path: Path) -> None:
    provision("init", "--host", "localhost", folder=tmp_path)
    said = provision("token", "tea", "milk", "-o", "tokens", folder=tmp_path)
    assert "edge-fl device enrol --token-file tea.token -o tea.pem" in " ".join(said.split())
    provision("device", "tea", folder=tmp_path)
    assert "Tokens wait for: milk (" in provision("list", folder=tmp_path)


def test_the_record_of_another_fleet_is_refused(tmp_path: Path) -> None:
    """Its list of revoked certificates would let everybody in whom this fleet has revoked."""
    for name in ("fleet", "other"):
        provision("init", "--host", "localhost", "--folder", name, folder=tmp_path)
    (tmp_path / "fleet" / "issued.json").write_bytes((tmp_path / "other" / "issued.json").read_bytes())

    for words in (["device", "tea"], ["list"], ["listen"], ["revoke", "tea"]):
        said = provision(*words, folder=tmp_path, code=21)
        assert "'fleet/issued.json' is of another authority than 'fleet/ca.pem': restore both" in said


@pytest.mark.parametrize("left", [["ca.pem"], ["ca.pem", "issued.json"], ["ca.pem", "issued.json", "broker.pem"]])
def test_an_init_that_was_broken_off_is_done_again(left: list[str], tmp_path: Path) -> None:
    """It writes the authority's key last."""
    provision("init", "--host", "localhost", folder=tmp_path)
    for path in (tmp_path / "fleet").iterdir():
        if path.name not in left:
            path.unlink()

    assert "make one with `edge-fl provision init`" in provision("list", folder=tmp_path, code=21)
    provision("init", "--host", "localhost", folder=tmp_path)
    provision("device", "tea", folder=tmp_path)


def test_a_rotation_that_was_broken_off_is_done_again(tmp_path: Path) -> None:
    provision("init", "--host", "localhost", folder=tmp_path)
    provision("device", "tea", folder=tmp_path)
    fleet = tmp_path / "fleet"
    first, believed = (
        (fleet / "coordinator.pem").read_bytes(),
        read_identity(fleet / "devices" / "tea.pem").coordinator,
    )
    provision("rotate", "coordinator", folder=tmp_path)
    (fleet / "coordinator.pem").write_bytes(first)  # as if the new file had not been written

    provision("rotate", "coordinator", folder=tmp_path)

    given = read_identity(fleet / "coordinator.pem")
    assert believed is not None
    assert newest_key(believed, given.successors) == SigningKey.read(given.file).public
    assert len(given.successors) == 1


def test_a_broker_s_file_as_windows_saves_it_survives_a_revocation(tmp_path: Path) -> None:
    provision("init", "--host", "localhost", folder=tmp_path)
    provision("device", "tea", folder=tmp_path)
    broker = tmp_path / "fleet" / "broker.pem"
    broker.write_bytes(b"\xef\xbb\xbf" + broker.read_bytes())

    provision("revoke", "tea", folder=tmp_path)

    assert read_identity(broker).name == "broker"
    assert b"X509 CRL" in broker.read_bytes()


def test_a_key_of_another_authority_signs_nothing(tmp_path: Path) -> None:
    for name in ("fleet", "other"):
        provision("init", "--host", "localhost", "--folder", name, folder=tmp_path)
    (tmp_path / "fleet" / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())

    assert "is not the key of 'fleet/ca.pem'" in provision("device", "tea", folder=tmp_path, code=21)


def test_a_revocation_waits_for_no_damaged_file(tmp_path: Path) -> None:
    provision("init", "--host", "localhost", folder=tmp_path)
    provision("device", "tea", "milk", folder=tmp_path)
    fleet = tmp_path / "fleet"
    (fleet / "tokens.json").write_text("{")
    (fleet / "broker.pem").write_bytes(b"\xc3\x28" * 100)

    said = provision("revoke", "tea", folder=tmp_path, code=21)

    assert "'tea' is revoked." in said
    assert "tokens.json' is damaged" in said
    assert "broker.pem' cannot be read or is damaged, and learns of nobody who is revoked: make it anew" in said
    assert not (fleet / "devices" / "tea.pem").exists()
    (fleet / "tokens.json").unlink()
    assert "'tea' is revoked already" in provision("revoke", "tea", folder=tmp_path, code=15)
    provision("rotate", "broker", folder=tmp_path)
    assert "X509 CRL" in (fleet / "broker.pem").read_text()


@pytest.mark.parametrize("content", [b"", b"Id: coordinator\n", None])
def test_the_key_that_devices_believe_is_restored(content: bytes | None, tmp_path: Path) -> None:
    for name in ("fleet", "other"):
        provision("init", "--host", "localhost", "--folder", name, folder=tmp_path)
    own, others = (tmp_path / name / "coordinator.pem" for name in ("fleet", "other"))
    own.write_bytes(others.read_bytes() if content is None else content)

    said = provision("rotate", "coordinator", folder=tmp_path, code=21)
    assert "fleet/coordinator.pem'" in said
    assert "restore it from your copy" in said


def test_a_damaged_password_file_gets_no_further_user(tmp_path: Path) -> None:
    provision("password", "tea", folder=tmp_path)
    held = (tmp_path / "passwords").read_text()
    (tmp_path / "passwords").write_text(held[:40])

    assert "Line 1 of 'passwords' is no user" in provision("password", "milk", folder=tmp_path, code=21)
    assert (tmp_path / "passwords").read_text() == held[:40]
    provision("password", "tea", folder=tmp_path)  # in its place


def test_users_of_another_kind_stay_in_mosquittos_file(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text("old:$6$AAAAAAAAAAAAAAAA$BBBB==\n")
    provision("password", "tea", folder=tmp_path)
    assert (tmp_path / "passwords").read_text().startswith("old:$6$AAAAAAAAAAAAAAAA$BBBB==\ntea:$7$")


def test_passwords_of_several(tmp_path: Path) -> None:
    first, _, again = (provision("password", name, folder=tmp_path).strip() for name in ("tea", "coffee", "tea"))
    assert first != again
    lines = (tmp_path / "passwords").read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["coffee", "tea"]
    assert not any(secret in (tmp_path / "passwords").read_text() for secret in (first, again))
    assert (tmp_path / "passwords").stat().st_mode & 0o077 == 0
