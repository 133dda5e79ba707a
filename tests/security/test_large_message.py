"""One message of 100 MB by an admitted device: the coordinator refuses it, and gives the memory back."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.provision.authority import Authority
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.bundle import Bundle
from edge_fl.identity.file import read_identity
from edge_fl.transport.address import BrokerAddress
from edge_fl.transport.connection import Connection
from edge_fl.wire.messages import Topics
from tests.security.conftest import SecuredFleet
from tests.security.test_fleet import RUN, edge_fl

LARGE, SPARE = 100_000_000, 40_000_000  # bytes
TOPICS = Topics()


def memory(process: int, figure: str) -> int:
    """Bytes: ``VmRSS`` now, ``VmHWM`` at the most by now."""
    text = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(text.partition(f"{figure}:")[2].split()[0])


def until(holds: Callable[[], bool], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while not holds() and time.monotonic() < limit:
        time.sleep(0.05)
    return holds()


def attacked(address: BrokerAddress, folder: Path, serve: list[str | Path]) -> tuple[int, int, int]:
    """What a coordinator took before, at the most, and after; it lives on, and says what it refused."""
    coordinator = edge_fl("serve", *serve, *RUN, "-o", "run", folder=folder)
    device = Connection(address=address, client_id="large", subscriptions=[TOPICS.all])
    try:
        device.open(timeout=120)
        assert until((folder / "run" / "metrics.jsonl").exists, 120)
        time.sleep(5)  # a coordinator first makes sure that it is alone
        before = memory(coordinator.pid, "VmRSS")
        device.publish(TOPICS.up("large"), bytes(LARGE))
        until(lambda: memory(coordinator.pid, "VmHWM") > before + LARGE, 8)
        until(lambda: memory(coordinator.pid, "VmRSS") < before + SPARE, 20)
        most, after = memory(coordinator.pid, "VmHWM"), memory(coordinator.pid, "VmRSS")
        assert coordinator.poll() is None
        return before, most, after
    finally:
        device.close()
        coordinator.terminate()
        said, _ = coordinator.communicate(timeout=60)
        print(said)


@pytest.mark.parametrize("secured", [pytest.param("mosquitto", marks=pytest.mark.mosquitto)], indirect=True)
def test_mosquitto_carries_it_and_the_coordinator_gives_it_back(
    secured: SecuredFleet, tmp_path: Path, digits_bundle: Bundle
) -> None:
    folder = tmp_path / "run-folder"
    folder.mkdir()
    own = secured.authority.folder / "coordinator.pem"
    address = secured.of(secured.identity("large"))
    before, most, after = attacked(address, folder, [digits_bundle.root, "--identity", own])
    assert most > before + LARGE  # it did come
    assert after < before + SPARE


def test_the_embedded_broker_takes_no_such_message(tmp_path: Path, digits_bundle: Bundle) -> None:
    port = free_port()
    authority = Authority.create(tmp_path / "fleet", hosts=["localhost"], port=port)
    access = read_identity(authority.device("large")).access
    serve = [digits_bundle.root, "--broker", "embedded", "--identity", tmp_path / "fleet" / "broker.pem"]
    address = BrokerAddress("localhost", port, "mqtts", access=access)
    before, most, after = attacked(address, tmp_path, [*serve, "--port", str(port)])
    assert most < before + SPARE
    assert after < before + SPARE
