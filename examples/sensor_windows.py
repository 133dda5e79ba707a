"""Writes made-up sensor windows as CSV: a.csv, b.csv and c.csv of three devices, held-out.csv, and all.csv.

A line is one window: 6 channels of 128 samples, channel after channel, and the activity, a class from 0 to 3. Each
activity has a frequency of its own, each device amplitudes of its own: `python examples/sensor_windows.py`.
"""

import csv
from pathlib import Path

import numpy as np

CHANNELS, LENGTH, ACTIVITIES = 6, 128, 4
HEADER = [f"c{channel}_{time}" for channel in range(CHANNELS) for time in range(LENGTH)] + ["activity"]


def windows(count: int, seed: int) -> list[list[str]]:
    """Lines of ``count`` windows from one device."""
    draw = np.random.default_rng(seed)
    amplitude = draw.uniform(0.7, 1.3, CHANNELS)
    lines = []
    for _ in range(count):
        activity = int(draw.integers(ACTIVITIES))
        cycles = (activity + 1) * 3 + draw.normal(0, 0.4)
        angle = 2 * np.pi * cycles * np.arange(LENGTH) / LENGTH + draw.uniform(0, 2 * np.pi, (CHANNELS, 1))
        signal = amplitude[:, None] * np.sin(angle) + draw.normal(0, 0.6, (CHANNELS, LENGTH))
        lines.append([*(f"{value:.3f}" for value in signal.ravel()), str(activity)])
    return lines


def main() -> None:
    devices = {f"{name}.csv": windows(400, seed) for seed, name in enumerate("abc")}
    everything = [line for lines in devices.values() for line in lines]
    for name, lines in {**devices, "all.csv": everything, "held-out.csv": windows(400, 9)}.items():
        with Path(name).open("w", newline="") as file:
            csv.writer(file).writerows([HEADER, *lines])
        print(f"{name}: {len(lines)} windows")


if __name__ == "__main__":
    main()
