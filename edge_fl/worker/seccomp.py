"""A filter of system calls for this process (seccomp), as the BPF program that the kernel takes.

What a train step never needs is refused with EPERM: sockets, new processes, other processes' memory, privileges, files
made, changed or removed. clone3 is ENOSYS, upon which the C library takes clone, whose flags a filter can read. A call
of another architecture's table ends the process.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from errno import ENOSYS, EPERM

__all__ = ["ARCHITECTURES", "REFUSED", "filter_program", "seccomp_known", "start_filter"]

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of the machines whose calls are known here."""

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # The network.
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    # Programs, and other processes.
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
    # Privileges and limits.
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setgroups": (116, 159),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "capset": (126, 91),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "setrlimit": (160, 164),
    # Name spaces, mounts, and the machine.
    "setns": (308, 268),
    "unshare": (272, 97),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "ioperm": (173, None),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    # Parts of the kernel that holes are found in, and ways around this filter.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    # Memory that no limit of a process counts.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # Files that come, go, or change.
    "creat": (85, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
"""Numbers on x86_64 and on aarch64; None where there is no such call."""

_OPEN: dict[str, tuple[int | None, int | None]] = {"open": (2, None), "openat": (257, 56)}
_FLAGS_AT = {"open": 1, "openat": 2}  # which argument
_UNREADABLE: dict[str, tuple[int, int]] = {"clone3": (435, 435), "openat2": (437, 437)}  # flags behind a pointer
_CLONE, _KILL, _TGKILL, _PRLIMIT = (56, 220), (62, 129), (234, 131), (302, 261)
_SECCOMP, _PRCTL_NO_NEW_PRIVS = (317, 277), 38
_CLONE_THREAD, _O_CREAT, _O_TRUNC = 0x00010000, 0o100, 0o1000
_X32 = 0x40000000  # numbers from here on are x86_64's other table

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # BPF_LD | BPF_W | BPF_ABS and so on
_ALLOW, _END = 0x7FFF0000, 0x80000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # in seccomp_data; an argument has 8 bytes, its low half first
_SET_FILTER, _ON_ALL_THREADS, _ACTION_AVAILABLE = 1, 1, 2

_Instruction = tuple[int, int, int, int]
"""Code, how many to skip when true, when false, and the constant."""


def filter_program(machine: str, pid: int) -> bytes:
    """The filter for a process ``pid`` on ``machine`` (a key of :data:`ARCHITECTURES`): 8 bytes an instruction."""
    column = list(ARCHITECTURES).index(machine)
    return b"".join(struct.pack("<HBBI", *each) for each in _instructions(ARCHITECTURES[machine], column, pid))


def _instructions(architecture: int, column: int, pid: int) -> Iterator[_Instruction]:
    yield _LOAD, 0, 0, _ARCH
    yield _EQUAL, 1, 0, architecture
    yield _RETURN, 0, 0, _END
    yield _LOAD, 0, 0, _NUMBER
    if architecture == ARCHITECTURES["x86_64"]:
        yield _AT_LEAST, 0, 1, _X32
        yield _RETURN, 0, 0, _END
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            yield from _when(number, [_refusal(EPERM)])
    for numbers in _UNREADABLE.values():
        yield from _when(numbers[column], [_refusal(ENOSYS)])
    yield from _when(_CLONE[column], _unless_any_bit(0, _CLONE_THREAD))
    for name, numbers in _OPEN.items():
        if (number := numbers[column]) is not None:
            yield from _when(number, _if_any_bit(_FLAGS_AT[name], _O_CREAT | _O_TRUNC))
    for number in (_KILL[column], _TGKILL[column]):
        yield from _when(number, [_low(0), (_EQUAL, 1, 0, pid), _refusal(EPERM), (_RETURN, 0, 0, _ALLOW)])
    # A limit may be read, not set: its new value's address is null.
    null = [(_LOAD, 0, 0, _ARGUMENTS + 8 * 2), (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, _ARGUMENTS + 8 * 2 + 4)]
    yield from _when(_PRLIMIT[column], [*null, (_EQUAL, 1, 0, 0), _refusal(EPERM), (_RETURN, 0, 0, _ALLOW)])
    yield _RETURN, 0, 0, _ALLOW


def _when(number: int, then: list[_Instruction]) -> Iterator[_Instruction]:
    """``then``, which ends in a return, for this call alone."""
    yield _EQUAL, 0, len(then), number
    yield from then


def _low(argument: int) -> _Instruction:
    return _LOAD, 0, 0, _ARGUMENTS + 8 * argument


def _if_any_bit(argument: int, bits: int) -> list[_Instruction]:
    return [_low(argument), (_ANY_BIT, 0, 1, bits), _refusal(EPERM), (_RETURN, 0, 0, _ALLOW)]


def _unless_any_bit(argument: int, bits: int) -> list[_Instruction]:
    return [_low(argument), (_ANY_BIT, 1, 0, bits), _refusal(EPERM), (_RETURN, 0, 0, _ALLOW)]


def _refusal(error: int) -> _Instruction:
    return _RETURN, 0, 0, 0x00050000 | error


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def seccomp_known() -> bool:
    """Whether this kernel takes such a filter, and its calls are known here."""
    return _call(_ACTION_AVAILABLE, 0, ctypes.byref(ctypes.c_uint32(_END))) == 0


def start_filter() -> bool:
    """Have all threads of this process filtered from now on, for good; False where the kernel does not take it."""
    if not seccomp_known() or _libc().prctl(_PRCTL_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    code = filter_program(platform.machine(), os.getpid())
    program = _Program(len(code) // 8, code)
    return _call(_SET_FILTER, _ON_ALL_THREADS, ctypes.byref(program)) == 0


def _call(operation: int, flags: int, argument: object) -> int:
    machine = platform.machine()
    if machine not in ARCHITECTURES or ctypes.sizeof(ctypes.c_void_p) != 8:
        return -1
    number = _SECCOMP[list(ARCHITECTURES).index(machine)]
    return int(_libc().syscall(ctypes.c_long(number), ctypes.c_uint(operation), ctypes.c_uint(flags), argument))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
