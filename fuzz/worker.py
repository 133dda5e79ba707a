"""One target under libFuzzer, guided by which lines of edge-fl a case reaches; run by :mod:`fuzz.campaign`."""

import logging
import resource
import sys
import tempfile
from pathlib import Path

import atheris
import msgspec

from fuzz.target import Prepared, Target

__all__: list[str] = []

_SECONDS = 20  # of a case; then it hangs
_OWN_MEGABYTES = 512  # that libFuzzer takes for its corpus
_UNGUIDED = ["edge_fl.secure_aggregation.shamir"]  # atheris never frees arrays that it sees compared


class _Settings(msgspec.Struct):
    target: Target
    cases: int
    prefix: str


def _limit_memory(megabytes: int) -> None:
    """Beyond what is mapped now, ``megabytes``: an allocation above that raises MemoryError, which nothing declares."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = mapped + ((megabytes + _OWN_MEGABYTES) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """Fuzz what the first argument says; the process ends with 0 where no fault was found."""
    settings = msgspec.json.decode(sys.argv[1], type=_Settings)
    target = settings.target
    logging.disable()
    with atheris.instrument_imports(include=["edge_fl", "broker"], exclude=_UNGUIDED):
        prepared: Prepared = target.prepare()
    with tempfile.TemporaryDirectory() as seeds:
        for number, seed in enumerate(prepared.seeds):
            (Path(seeds) / f"{number:04d}").write_bytes(seed)
        options = [
            f"-runs={settings.cases}",
            f"-max_len={target.longest}",
            f"-timeout={_SECONDS}",
            f"-report_slow_units={_SECONDS}",  # what took less is no fault
            f"-artifact_prefix={settings.prefix}",
            "-rss_limit_mb=0",
            "-print_final_stats=1",
            "-verbosity=1",
            seeds,
        ]
        atheris.Setup([sys.argv[0], *options], prepared.run)
        _limit_memory(target.megabytes)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
