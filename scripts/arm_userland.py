"""Debian for arm64 in a folder, and its Python under qemu's user emulation.

Packages are unpacked rather than installed, and qemu looks for an absolute path below that folder first: no root, no
mounts, no chroot, no binfmt_misc. So what is emulated cannot start another program of its kind; the device agent, in
onnxruntime, starts none.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from edge_fl.core.errors import RuntimeMissingError

__all__ = ["CPU", "ROOT", "Userland", "install", "userland"]

ROOT = Path(__file__).resolve().parents[1]
SUITE = "bookworm"  # whose Python is 3.11, the oldest that edge-fl runs on
INCLUDE = "python3.11,libstdc++6"
CPU = "cortex-a72"  # a Raspberry Pi 4's
CPUINFO = "".join(  # onnxruntime reads it, and ends with a segmentation fault on one of another processor's
    f"""\
processor\t: {core}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
    for core in range(4)
)
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")


@dataclass(frozen=True)
class Userland:
    """The emulator, ``debian``, the unpacked system, and ``packages``, what pip has put beside it for edge-fl."""

    qemu: str
    debian: Path
    packages: Path

    def python(self, *folders: Path) -> tuple[str, ...]:
        """The command that starts the emulated Python, which imports from ``folders`` and then from ``packages``."""
        path = ":".join(str(folder) for folder in (*folders, self.packages))
        return (
            *(self.qemu, "-cpu", CPU, "-L", str(self.debian)),
            *("-E", f"PYTHONPATH={path}", str(self.debian / "usr/bin/python3.11")),
            *("-P", "-s"),  # not from the working directory, which may be a checkout, nor from the user's packages
        )

    def installed(self) -> list[str]:
        """Names and versions of the packages."""
        return sorted(f"{found.name} {found.version}" for found in distributions(path=[str(self.packages)]))


def userland(cache: Path, say: Callable[[str], None]) -> Userland:
    """The userland with the device extra's packages, made where ``cache`` does not hold it yet.

    Raises
    ------
    RuntimeMissingError
        When a tool is missing, or one of them fails.
    """
    qemu = _tool("qemu-aarch64-static", "qemu-user-static")
    requirements, constraints = _requirements(), ROOT / "constraints.txt"
    debian = cache / f"debian-{_key(SUITE, INCLUDE, CPUINFO)}"
    packages = cache / f"packages-{_key(SUITE, *PLATFORMS, *requirements, constraints.read_text())}"
    with _locked(cache):
        if not debian.exists():
            say(f"unpacking Debian {SUITE} for arm64 to {debian}")
            _fill(debian, _unpack_debian)
        if not packages.exists():
            say(f"installing wheels for aarch64 to {packages}")
            _fill(packages, lambda folder: install(folder, *requirements, "-c", str(constraints)))
    return Userland(qemu, debian, packages)


def install(folder: Path, *what: str) -> None:
    """Have pip put wheels for the userland, or for any machine, into ``folder``; raises RuntimeMissingError."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    foreign = [*platforms, "--implementation", "cp", "--python-version", "3.11", "--only-binary=:all:"]
    _run([*pip, *foreign, "--target", str(folder), *what])


def _requirements() -> list[str]:
    """What `edge-fl[device]` needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["device"]]


def _unpack_debian(folder: Path) -> None:
    """Have debootstrap find, fetch and check the packages; to install them it would need root, mounts and chroot."""
    debootstrap, archives = _tool("debootstrap", "debootstrap"), folder / "var/cache/apt/archives"
    options = ["--arch=arm64", "--variant=minbase", f"--include={INCLUDE}"]
    _run([debootstrap, "--download-only", *options, SUITE, str(folder)])
    for package in sorted(archives.glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(package), str(folder)])
    shutil.rmtree(archives)
    (folder / "proc/cpuinfo").write_text(CPUINFO)


def _fill(folder: Path, make: Callable[[Path], None]) -> None:
    """Have ``make`` fill ``folder``, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        make(made)
        made.rename(folder)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """One at a time: a second that needs the same waits and finds it made."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _tool(name: str, package: str) -> str:
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise RuntimeMissingError(f"There is no {name} here: install it (Debian: apt-get install {package}).")
    return path


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = done.stdout.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RuntimeMissingError(f"'{' '.join(command)}' failed: {said[0]}")
