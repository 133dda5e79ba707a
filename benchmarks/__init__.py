"""Benchmarks: one file each, run as `edge-fl bench NAME`. Timings live here, never in tests."""
