"""A process of emulated devices: the product's own agents, each on its hardware;
:mod:`device_sim.emulation.emulation` starts it.

::

    python -m device_sim.emulation.emulated_agent JSON    # an EmulatedProcess
"""

import importlib
import logging
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from device_sim.emulation.battery import Battery
from device_sim.emulation.duty_cycle import DutyCycle
from device_sim.emulation.emulated_runtime import Hardware
from device_sim.emulation.memory_limit import limit_memory, told_as_memory
from device_sim.emulation.step_costs import StepCosts
from edge_fl.agent.agent import Agent, AgentSettings
from edge_fl.agent.opening import in_this_process
from edge_fl.core.errors import EdgeFLError
from edge_fl.data.sources.base import open_source
from edge_fl.transport.address import BrokerAddress

__all__ = ["BatterySettings", "EmulatedAgent", "EmulatedProcess"]


class BatterySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As :class:`device_sim.emulation.battery.Battery`, times in device seconds since the fleet's start."""

    joules: float
    level: float
    watts: float
    charging: tuple[tuple[float, float], ...]


class EmulatedAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One agent: as ``edge-fl device`` is told, and its hardware.

    ``began`` is when the fleet was started, in seconds since the epoch, ``costs`` the file of its
    :class:`device_sim.emulation.step_costs.StepCosts`.
    """

    client: str
    data: str
    broker: str
    state: str
    runtime: str
    tier: int
    test_share: float
    share: float
    scale: float
    memory_mb: int
    battery: BatterySettings | None
    began: float
    costs: str

    def hardware(self) -> Hardware:
        """What it computes on."""
        battery = self.battery
        power = None
        if battery is not None:
            power = Battery(
                battery.joules,
                level=battery.level,
                watts=battery.watts,
                charging=battery.charging,
                clock=lambda: (time.time() - self.began) / self.scale,
            )
        return Hardware(DutyCycle(self.share), StepCosts(Path(self.costs)), self.memory_mb, self.scale, power)


class EmulatedProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The agents of one process, which share its memory; ``once`` ends each with its run."""

    agents: tuple[EmulatedAgent, ...]
    once: bool
    connect_timeout: float

    def run(self) -> int:
        """Run them all to their end; the exit code of the first that failed, or 0."""
        for agent in self.agents:
            importlib.import_module(f"edge_fl.runtimes.{agent.runtime}")  # which is no part of what is limited
        limit_memory(sum(agent.memory_mb for agent in self.agents))
        if len(self.agents) == 1:
            return self._run(self.agents[0])
        codes: list[int] = []
        threads = [
            threading.Thread(target=lambda own=agent: codes.append(self._run(own)), name=agent.client)
            for agent in self.agents
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return next((code for code in codes if code), 0)

    def _run(self, agent: EmulatedAgent) -> int:
        """Run one; a refusal is one sentence."""
        settings = AgentSettings(
            broker=BrokerAddress.parse(agent.broker),
            client=agent.client,
            state=Path(agent.state),
            runtime=agent.runtime,
            tier=agent.tier,
            test_share=agent.test_share,
            once=self.once,
            connect_timeout=self.connect_timeout,
        )
        hardware = agent.hardware()
        try:
            with told_as_memory(agent.memory_mb, "its data"):
                source = open_source(agent.data)
                device = Agent(settings, source, open=in_this_process(hardware.open), consent=hardware.consent)
            with told_as_memory(agent.memory_mb, "a round"):
                device.run()
        except EdgeFLError as error:
            print(f"{agent.client}: {error}", file=sys.stderr, flush=True)
            return error.exit_code
        except Exception as error:  # of a thread it would be lost
            print(f"{agent.client}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return 1
        return 0


def _main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    code = msgspec.json.decode(sys.argv[1], type=EmulatedProcess).run()
    sys.stderr.flush()
    os._exit(code)  # at once: what is left to clean up would need memory, too


if __name__ == "__main__":
    _main()
