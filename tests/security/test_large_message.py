"""One message of 100 MB by an admitted device: the coordinator counts it, and gives the memory back."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from edge_fl.core.bundle import Bundle
from edge_fl.transport.connection import Connection
from edge_fl.wire.messages import Topics
from tests.security.conftest import ServedFleet
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


def counted(folder: Path) -> set[tuple[str, str]]:
    """Whom the run turned away, and by which code."""
    status = json.loads(edge_fl("status", "run", "--json", folder=folder).communicate(timeout=60)[0])
    return {(one["client"], one["code"]) for one in status["rejected"]}


def test_a_message_of_100_mb_costs_its_memory_for_a_while(served: ServedFleet, digits_bundle: Bundle) -> None:
    folder = served.folder
    coordinator = edge_fl("serve", digits_bundle.root, *served.serve, *RUN, "-o", "run", folder=folder)
    device = Connection(address=served.reached_by("large"), client_id="large", subscriptions=[TOPICS.all])
    try:
        device.open(timeout=120)
        assert until((folder / "run" / "metrics.jsonl").exists, 120)
        time.sleep(5)  # a coordinator first makes sure that it is alone
        before = memory(coordinator.pid, "VmRSS")
        device.publish(TOPICS.up("large"), bytes(LARGE))
        assert until(lambda: counted(folder) == {("", "flood")}, 60), counted(folder)
        until(lambda: memory(coordinator.pid, "VmRSS") < before + SPARE, 20)
        most, after = memory(coordinator.pid, "VmHWM"), memory(coordinator.pid, "VmRSS")
        assert coordinator.poll() is None
        assert after < before + SPARE
        if served.mosquitto is None:  # which takes no such message
            assert most < before + SPARE
        else:
            assert most > before + LARGE  # it did come
    finally:
        device.close()
        coordinator.terminate()
        said, _ = coordinator.communicate(timeout=60)
    assert "(flood): " in said
