"""What files this thread, and those that it starts, may open (Landlock): some to read, and none else.

Landlock speaks of paths that are opened from now on; what is open or mapped stays so. The numbers of its calls are the
same on every machine.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

__all__ = ["confine_files", "landlock_version"]

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH, _PRCTL_NO_NEW_PRIVS = 1, 1, 38
_READ_FILE, _WRITE_FILE, _READ_FOLDER = 1 << 2, 1 << 1, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files each version knows, from the lowest bit; later ones know those of 5."""
_TCP = 0b11  # bind and connect, from 4 on
_SCOPES = 0b11  # abstract sockets and signals of others, from 6 on


def landlock_version() -> int:
    """The version of Landlock that this kernel has; 0 for none, or where it is off."""
    return max(_call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION)), 0)


def confine_files(readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Let this thread open these folders and files alone from now on; the version of Landlock, 0 where it is not to be.

    Parameters
    ----------
    readable
        To be read, folders with all in them; those that are not there are left out.
    writable
        Files that are there, to be read and written.
    """
    version = landlock_version()
    if not version:
        return 0
    files = (1 << _RIGHTS[min(version, 5)]) - 1
    rights = struct.pack("<QQQ", files, _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _call(_CREATE, rights, ctypes.c_size_t(size), ctypes.c_uint(0))
    if rules < 0:
        return 0
    try:
        for path in readable:
            _allow(rules, path, _READ_FILE | (_READ_FOLDER if path.is_dir() else 0))
        for path in writable:
            _allow(rules, path, _READ_FILE | _WRITE_FILE)
        forbidden = ctypes.CDLL(None).prctl(_PRCTL_NO_NEW_PRIVS, 1, 0, 0, 0)
        done = not forbidden and _call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint(0), ctypes.c_uint(0)) == 0
    finally:
        os.close(rules)
    return version if done else 0


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # what is not there, or not to be seen, needs no leave
        return
    try:
        rule = struct.pack("<Qi", rights, place)
        _call(_ADD, ctypes.c_int(rules), ctypes.c_int(_BENEATH), rule, ctypes.c_uint(0))
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(ctypes.c_long(number), *arguments))
