"""What the device tells the coordinator about itself."""

import os
import platform

from edge_fl import __version__
from edge_fl.wire.messages import PROTOCOL, Measured, Register

__all__ = ["registration"]


def registration(
    *, runtime: str, samples: int, tier: int, test_samples: int = 0, measured: Measured | None = None
) -> Register:
    """The Register message of this machine."""
    return Register(
        protocol=PROTOCOL,
        agent=__version__,
        runtime=runtime,
        samples=samples,
        tier=tier,
        platform=f"{platform.system()}-{platform.machine()}".lower(),
        cpus=os.cpu_count() or 1,
        memory_mb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        measured=measured,
        test_samples=test_samples,
    )
