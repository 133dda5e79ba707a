"""What a process gives up before it touches a bundle's programs, besides system calls."""

import ctypes
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import edge_fl
from edge_fl.core.errors import RunError
from edge_fl.worker.landlock import confine_files, landlock_version
from edge_fl.worker.messages import Confinement
from edge_fl.worker.seccomp import seccomp_known

__all__ = [
    "confinement_here",
    "die_with",
    "first_to_go",
    "limit",
    "memory_share",
    "only_files",
    "told",
    "worker_environment",
]

_PRCTL_PDEATHSIG = 1
_LEAST_MEMORY, _SHARE = 512 << 20, 0.75
_OPEN_FILES = 256
_PASSED = ("PATH", "HOME", "XDG_CACHE_HOME", "CXX", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
_PASSED_ALL = ("LC_", "OMP_", "MKL_")
_SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu", "/dev/urandom"),
)


def worker_environment() -> dict[str, str]:
    """What of this process's environment a worker is given: where libraries and caches are, and no secret."""
    passed = {name: v for name, v in os.environ.items() if name in _PASSED or name.startswith(_PASSED_ALL)}
    places = [str(Path(place).absolute()) for place in dict.fromkeys(sys.path)]
    # numpy's BLAS would start threads as it is imported, which Landlock would leave out.
    return passed | {"PYTHONPATH": os.pathsep.join(places), "OPENBLAS_NUM_THREADS": "1"}


def memory_share() -> int:
    """Bytes that programs may take unless somebody says otherwise: three quarters of the machine's, or of what its
    group of processes is left (cgroup), and 512 MiB at the least.
    """
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(int(_SHARE * min([there, *_group_limits()])), _LEAST_MEMORY)


def _group_limits() -> Iterator[int]:
    try:
        (line,) = (row for row in Path("/proc/self/cgroup").read_text().splitlines() if row.startswith("0::"))
        group = Path("/sys/fs/cgroup", line.removeprefix("0::/"))
        for folder in (group, *group.parents):
            limit = folder / "memory.max"
            if limit.is_file() and (text := limit.read_text().strip()) != "max":
                yield int(text)
    except (OSError, ValueError):  # no such groups here
        return


def confinement_here(memory: int) -> Confinement:
    """What a worker of this machine would be confined by, without doing so."""
    return Confinement(seccomp_known(), landlock_version(), memory)


def told(found: Confinement) -> tuple[str, bool]:
    """A sentence of what holds programs, and whether that is all that can hold them."""
    landlock = f"Landlock {found.landlock}" if found.landlock else "Landlock"
    there = {"seccomp": found.seccomp, landlock: bool(found.landlock), "limits": True}
    held = " and ".join(name for name, has in there.items() if has)
    missing = " and no ".join(name for name, has in there.items() if not has)
    lacks = f"; this machine gives no {missing}" if missing else ""
    most = f"{found.memory / 1e6:,.0f} MB of memory"
    return f"Programs run in a process of their own, held by {held}, with {most} at the most{lacks}.", not missing


def die_with(agent: int) -> None:
    """Have the kernel end this process when its parent, ``agent``, ends; raises RunError when that is gone already."""
    ctypes.CDLL(None).prctl(_PRCTL_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        raise RunError("The agent of this process is gone.")


def only_files(bundle: Path) -> int:
    """Open nothing from now on but what libraries need, and the bundle, to read; Landlock's version, 0 without it.

    Landlock holds for this thread and those to come: where there are others already, it would hold nobody.
    """
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return 0
    return confine_files([*_libraries(), bundle, Path.cwd()], [Path("/dev/null")])


def _libraries() -> set[Path]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    python = {sysconfig.get_path(kind) for kind in kinds} | {f"{sys.base_prefix}/lib", f"{sys.prefix}/lib"}
    installed = {place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")}
    return {Path(place) for place in {*python, *installed, *_SYSTEM} if place} | {Path(edge_fl.__file__).parent}


def limit(memory: int) -> None:
    """Take no more than ``memory`` bytes besides what is there now, write no file, leave no core behind."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    there = pages * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_AS, there + memory),
    ):
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


def first_to_go() -> None:
    """Have the kernel end this process before others where memory runs out."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:  # not to be had in every container
        return
