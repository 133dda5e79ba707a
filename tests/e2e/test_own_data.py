"""A device with data of its own, which grows."""

from pathlib import Path

import numpy as np

from device_sim.emulation.agent_processes import AgentProcess
from edge_fl.data.partition import DataSpec, client_samples
from edge_fl.transport.address import BrokerAddress

GROWING = """
from pathlib import Path
import numpy as np
rounds = 0
def read():
    global rounds
    rounds += 1
    with np.load(Path(__file__).parent / "all.npz") as arrays:
        return arrays["x"][: 40 * rounds], arrays["y"][: 40 * rounds]
"""


def test_a_coordinator_takes_updates_of_data_that_grew(system, embedded: BrokerAddress, tmp_path: Path) -> None:
    samples = client_samples(DataSpec.parse("digits"))
    np.savez(tmp_path / "all.npz", x=samples.x, y=samples.y)
    (tmp_path / "mine.py").write_text(GROWING)
    agents = [AgentProcess("client-0", f"python:{tmp_path}/mine.py:read")]
    summary = system.run(system.config(rounds=3, clients=1), agents, embedded)
    assert [list(metrics.uplink) for metrics in summary.rounds] == [["client-0"]] * 3
    assert all(metrics.rejections == {} for metrics in summary.rounds)
