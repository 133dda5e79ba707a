"""The filter of system calls, run as the kernel would, for machines that this one is not."""

import re
import struct
from pathlib import Path

import pytest

from edge_fl.worker.seccomp import ARCHITECTURES, REFUSED, filter_program

PID = 4711
ALLOW, END, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
# From Linux's own tables: asm/unistd_64.h, and asm-generic/unistd.h, which is aarch64's.
NUMBERS = {
    "x86_64": {"read": 0, "openat": 257, "clone": 56, "clone3": 435, "kill": 62, "tgkill": 234, "prlimit64": 302}
    | {"socket": 41, "connect": 42, "execve": 59, "ptrace": 101, "io_uring_setup": 425, "bpf": 321, "mmap": 9}
    | {"futex": 202, "unlinkat": 263, "fork": 57, "memfd_create": 319, "openat2": 437, "open": 2},
    "aarch64": {
        "read": 63,
        "openat": 56,
        "clone": 220,
        "clone3": 435,
        "kill": 129,
        "tgkill": 131,
        "prlimit64": 261,
    }
    | {"socket": 198, "connect": 203, "execve": 221, "ptrace": 117, "io_uring_setup": 425, "bpf": 280, "mmap": 222}
    | {"futex": 98, "unlinkat": 35, "memfd_create": 279, "openat2": 437},
}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
THREAD = 0x3D0F00  # the flags of pthread_create
WRITE, CREATE = 0o1, 0o101


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel's interpreter makes of a call (classic BPF over struct seccomp_data)."""
    code = filter_program(machine, PID)
    program = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, architecture or ARCHITECTURES[machine], 0, *given)
    held, at = 0, 0
    while True:
        operation, when_true, when_false, constant = program[at]
        at += 1
        match operation:
            case 0x20:
                (held,) = struct.unpack_from("<I", data, constant)
            case 0x06:
                return constant
            case 0x15:
                at += when_true if held == constant else when_false
            case 0x35:
                at += when_true if held >= constant else when_false
            case 0x45:
                at += when_true if held & constant else when_false
            case _:
                raise AssertionError(operation)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_training_needs_passes_and_the_rest_does_not(machine: str) -> None:
    number = NUMBERS[machine]
    for name in ("read", "mmap", "futex"):
        assert verdict(machine, number[name]) == ALLOW, name
    for name in ("socket", "connect", "execve", "ptrace", "io_uring_setup", "bpf", "unlinkat", "memfd_create"):
        assert verdict(machine, number[name]) == EPERM, name
    for name in ("clone3", "openat2"):
        assert verdict(machine, number[name]) == ENOSYS, name


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_arguments_decide_where_a_call_has_two_uses(machine: str) -> None:
    number = NUMBERS[machine]
    assert verdict(machine, number["clone"], THREAD) == ALLOW
    assert verdict(machine, number["clone"], 17) == EPERM  # SIGCHLD alone: a fork
    assert verdict(machine, number["openat"], 0, 0, WRITE) == ALLOW  # /dev/null; Landlock has the rest
    assert verdict(machine, number["openat"], 0, 0, CREATE) == EPERM
    for name in ("kill", "tgkill"):
        assert verdict(machine, number[name], PID) == ALLOW
        assert verdict(machine, number[name], 1) == EPERM
    assert verdict(machine, number["prlimit64"], 0, 9, 0) == ALLOW
    assert verdict(machine, number["prlimit64"], 0, 9, 1 << 32) == EPERM
    assert verdict(machine, number["prlimit64"], 0, 9, 1) == EPERM


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_calls_by_another_table_end_the_process(machine: str) -> None:
    for architecture in (0x40000003, 0x40000028, *(a for m, a in ARCHITECTURES.items() if m != machine)):
        assert verdict(machine, 1, architecture=architecture) == END
    if machine == "x86_64":
        assert verdict(machine, 0x40000000 | 41) == END  # x32


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].is_file():
        pytest.skip(f"there is no '{HEADERS[machine]}' (Debian: linux-libc-dev)")
    table = {
        name: int(number)
        for name, number in re.findall(
            r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text(), re.MULTILINE
        )
    }
    column = list(ARCHITECTURES).index(machine)
    wrong = {
        name: numbers[column]
        for name, numbers in REFUSED.items()
        if name not in ("fchmodat2",)
        and table.get(name) != numbers[column]  # of Linux 6.6, later than some headers
    }
    assert wrong == {}
    assert all(table[name] == number for name, number in NUMBERS[machine].items())
