"""What a hostile program might do, as a method that a task names: its code has the rights of a program's own.

The deed is the task's seed, for a seed comes with the task. Loaded by path, in the process of the programs.
"""

import ctypes
import os
import resource
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edge_fl.methods.base import Job, LocalHalf
from edge_fl.methods.fedavg import METHOD


def segfault() -> None:
    ctypes.string_at(1)


def abort() -> None:
    os.abort()


def leave() -> None:
    os._exit(0)


def killed() -> None:
    os.kill(os.getpid(), 9)


def connect() -> None:
    socket.create_connection(("127.0.0.1", 1))


def read_home() -> None:
    Path(os.environ["HOME"], "secret.txt").read_text()


def read_agent() -> None:
    Path(f"/proc/{os.getppid()}/environ").read_bytes()


def write_here() -> None:
    Path("mine").write_text("mine")


def write_anywhere() -> None:
    Path("/tmp", f"mine-{os.getpid()}").write_text("mine")


def start_program() -> None:
    subprocess.run(["/bin/true"], check=True)


def become_two() -> None:
    os.fork()


def kill_agent() -> None:
    os.kill(os.getppid(), 9)


def allocate() -> None:
    held = []  # is free again for the next task, which finds less than one such array left otherwise
    while True:
        held.append(np.ones(1 << 24))


def lift_limits() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def hide_memory() -> None:
    os.memfd_create("hidden")


def loop() -> None:
    while True:
        pass


def flood() -> None:
    for _ in range(1 << 20):
        os.write(2, b"\x1b[2J" * 64)
    os.abort()


def garble() -> None:
    os.write(3, b"\xff" * 64)  # where answers go
    while True:
        pass


def secrets() -> None:
    raise ValueError(",".join(sorted(name for name in os.environ if name.startswith("EDGE_FL"))) or "none")


DEEDS: list[Callable[[], None]] = [
    segfault,
    abort,
    leave,
    killed,
    connect,
    read_home,
    read_agent,
    write_here,
    write_anywhere,
    start_program,
    become_two,
    kill_agent,
    allocate,
    lift_limits,
    hide_memory,
    loop,
    flood,
    garble,
    secrets,
]


class Hostile(METHOD):
    """FedAvg that does a deed first."""

    name = "hostile"

    def local(self, job: Job) -> LocalHalf:
        """Do it."""
        DEEDS[job.seed]()
        return super().local(job)
