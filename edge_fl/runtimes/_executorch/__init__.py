"""ExecuTorch without torch: the wheel's C++ libraries behind a C shim, compiled once and used through ctypes."""
