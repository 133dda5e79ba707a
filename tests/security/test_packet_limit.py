"""A broker that lets no chunk through: who meets it says so, and devices wait until it is mended."""

from collections.abc import Iterator

import numpy as np
import pytest

from edge_fl.core.bundle import Bundle
from tests.security.conftest import ServedFleet
from tests.security.test_fleet import RUN, agents, edge_fl, ended, open_run, same, weights

__all__ = ["open_run"]  # a fixture

LIMIT = 128 << 10  # bytes
SENTENCE = "lets no message of 256 KiB through, in which bundles and models travel: raise its limit"


def limited(served: ServedFleet) -> Iterator[None]:
    """The fleet's broker with each limit that it has, and then with none."""
    if served.mosquitto is None:
        with served.before_serve(largest=LIMIT):
            yield
        return
    file = served.folder / "mosquitto" / "mosquitto.conf"
    own = file.read_text()
    for line in (f"message_size_limit {LIMIT}\n", f"max_packet_size {LIMIT}\n", ""):
        file.write_text(own + line)
        served.mosquitto.kill()
        served.mosquitto.start()
        if line:
            yield


@pytest.mark.matrix
def test_a_broker_with_a_limit_of_128_kb_is_told_of_and_its_devices_wait(
    served: ServedFleet, digits_bundle: Bundle, open_run: dict[str, np.ndarray]
) -> None:
    """The coordinator on another's broker and the doctor each say why they end; agents serve once the limit is gone."""
    folder, serve = served.folder, ["serve", digits_bundle.root, *served.serve, *RUN, "-o", "run"]
    doctor = ["device", "doctor", "--data", "digits:0/2", *served.devices("milk")["milk"]]
    waiting = agents(folder, served.devices("tea", "coffee"))
    try:
        for _ in limited(served):
            asking = [edge_fl(*doctor, folder=folder)]
            if served.mosquitto is not None:  # another broker's coordinator comes in from outside, too
                asking.append(edge_fl(*serve, folder=folder))
            for process in asking:
                said = " ".join(process.communicate(timeout=120)[0].split())
                assert process.returncode == 16, said
                assert SENTENCE in said
        assert [process.poll() for process in waiting] == [None, None]
        printed = ended([edge_fl(*serve, folder=folder), *waiting])
    finally:
        for process in waiting:
            process.kill()
    assert "Traceback" not in "".join(printed)
    assert same(weights(folder), open_run)
