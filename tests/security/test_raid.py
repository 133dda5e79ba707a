"""Admitted devices that say and send all that is wrong, one after another, beside an honest run over TLS.

Real processes on both brokers: each kind is refused, counted under its code and shown by `status`; the coordinator
lives, stays under its limit, and ends in the bits of a run without them.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from broker.provision.authority import Authority
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.bundle import Bundle
from edge_fl.identity.file import read_identity
from edge_fl.transport.address import BrokerAddress
from tests.security.conftest import SecuredFleet, serve_embedded
from tests.security.raiders import EPOCHS, LATE, OUT_OF_RANGE, SAID, WRONG, Liar, Raider
from tests.security.test_fleet import edge_fl, open_run, run, same, weights
from tests.security.test_flood import Resident

__all__ = ["open_run"]  # a fixture

MOST_RESIDENT = 350_000  # kB of the coordinator, which was seen to take 200,000; 64 MB may wait of one sender
FOUR = ("--clients-per-round=4", "--min-clients=4")


def raided(
    folder: Path,
    serve: list[str | Path],
    addresses: dict[str, BrokerAddress],
    devices: dict[str, list[str | Path]],
    bundle: Bundle,
) -> None:
    """A run beside a raid, and all that must hold of it but its weights."""
    files, programs = bundle.manifest.files, bundle.manifest.programs.values()
    named = {program.file for several in programs for program in several}
    contents = {files[name].sha256: files[name].size for name in named}
    liar = Liar(addresses["liar"], folder / "state-liar", bundle.layout)
    raider = Raider(addresses["raider"], folder / "state-raider", contents, lambda: liar.done)
    resident = Resident()
    for rogue in (liar, raider):
        rogue.start()
    try:
        printed = run(folder, serve, devices, resident.watch, FOUR)
    finally:
        for rogue in (liar, raider):
            rogue.stop()
    assert (liar.fault, raider.fault) == (None, None)
    assert liar.refused == {name: code for name, (code, _) in WRONG.items()}
    status = json.loads(edge_fl("status", "run", "--json", folder=folder).communicate(timeout=60)[0])
    counted = defaultdict[str, Counter[str]](Counter)
    for refused in status["rejected"]:
        counted[refused["client"]][refused["code"]] += refused["count"]
    assert {code for code, _ in WRONG.values()} <= counted["liar"].keys()
    strangers = {"unregistered", "topic"}  # who is not known yet, and a topic that is none
    assert SAID - strangers <= counted["raider"].keys()
    assert strangers <= counted[""].keys()
    assert counted["raider"]["message"] == OUT_OF_RANGE
    assert counted["raider"]["late"] >= LATE + EPOCHS
    assert raider.hellos < 20  # every device answers each
    assert printed.count("raider registered") < 50  # each is in the record, too
    assert {"tea", "coffee"}.isdisjoint(counted)
    assert 0 < resident.most < MOST_RESIDENT
    assert all(f"({code}" in printed for code in SAID)  # in the log
    assert all(letter.isprintable() or letter in "\n\t" for letter in printed)
    assert "owned" in printed
    assert not any(line.lstrip().startswith("forged line") for line in printed.splitlines())
    assert printed.count("rejected") < 300  # none costs a line each


@pytest.mark.parametrize("secured", [pytest.param("mosquitto", marks=pytest.mark.mosquitto)], indirect=True)
def test_a_raid_on_mosquitto_changes_no_bit(
    secured: SecuredFleet, tmp_path: Path, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    folder = tmp_path / "run-folder"
    folder.mkdir()
    own = secured.authority.folder / "coordinator.pem"
    devices: dict[str, list[str | Path]] = {n: ["--identity", secured.identity(n)] for n in ("tea", "coffee")}
    addresses = {name: secured.of(secured.identity(name)) for name in ("liar", "raider")}
    raided(folder, [digits_bundle.root, "--identity", own], addresses, devices, digits_bundle)
    assert same(weights(folder), open_run)


def test_a_raid_on_the_embedded_broker_changes_no_bit(
    tmp_path: Path, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    port = free_port()
    authority = Authority.create(tmp_path / "fleet", hosts=["localhost"], port=port)
    devices: dict[str, list[str | Path]] = {n: ["--identity", authority.device(n)] for n in ("tea", "coffee")}
    serve = [digits_bundle.root, *serve_embedded(authority.folder, port)]
    addresses = {
        name: BrokerAddress("localhost", port, "mqtts", access=read_identity(authority.device(name)).access)
        for name in ("liar", "raider")
    }
    raided(tmp_path, serve, addresses, devices, digits_bundle)
    assert same(weights(tmp_path), open_run)
