"""What papers report, to stand beside what is measured here: FedBIAD's (Xue et al., arXiv:2307.07172), and others'."""

from dataclasses import dataclass

__all__ = ["FJORD_BY_WIDTH", "TABLE_1", "TABLE_2", "TCS_ACCURACY", "TIME_SAVED", "VARDROP", "Reported"]


@dataclass(frozen=True)
class Reported:
    """Accuracy in percent (top-1 for images, top-3 for words), and the mean upload: a size as printed, or a ratio."""

    accuracy: float
    size: str = ""
    ratio: float | None = None


TABLE_1: dict[str, dict[str, Reported]] = {
    "mnist": {
        "fedavg": Reported(95.06, "531 KB", 1.0),
        "feddrop": Reported(95.03, "424 KB", 1.25),
        "afd": Reported(94.49, "424 KB", 1.25),
        "fedmp": Reported(95.09, "477 KB", 1.10),
        "fjord": Reported(94.93, "437 KB", 1.21),
        "heterofl": Reported(94.98, "432 KB", 1.23),
        "fedbiad": Reported(95.20, "424 KB", 1.25),
    },
    "fashion-mnist": {
        "fedavg": Reported(81.18, "1.1 MB", 1.0),
        "feddrop": Reported(81.12, "530 KB", 2.0),
        "afd": Reported(82.37, "530 KB", 2.0),
        "fedmp": Reported(82.40, "862 KB", 1.3),
        "fjord": Reported(82.64, "718 KB", 1.5),
        "heterofl": Reported(82.68, "685 KB", 1.6),
        "fedbiad": Reported(83.59, "530 KB", 2.0),
    },
    "wikitext-2": {
        "fedavg": Reported(31.86, "75.3 MB", 1.0),
        "feddrop": Reported(32.02, "57.9 MB", 1.3),
        "afd": Reported(31.20, "56.5 MB", 1.3),
        "fedmp": Reported(32.53, "59.1 MB", 1.3),
        "fjord": Reported(31.16, "54.0 MB", 1.4),
        "heterofl": Reported(31.84, "52.9 MB", 1.4),
        "fedbiad": Reported(33.16, "39.1 MB", 2.0),
    },
}
"""Table I, by data set and method. Its KB are of 1024 bytes: see :mod:`benchmarks.accounting`."""

TABLE_2: dict[str, dict[str, Reported]] = {
    "mnist": {
        "fedavg+fedpaq": Reported(94.90, ratio=4),
        "fedavg+signsgd": Reported(92.04, ratio=33),
        "fedavg+stc": Reported(90.56, ratio=177),
        "fedavg+dgc": Reported(94.84, ratio=177),
        "afd+dgc": Reported(94.39, ratio=265),
        "fjord+dgc": Reported(94.93, ratio=265),
        "fedbiad+dgc": Reported(95.22, ratio=265),
    },
    "fashion-mnist": {
        "fedavg+fedpaq": Reported(78.64, ratio=4),
        "fedavg+signsgd": Reported(76.57, ratio=34),
        "fedavg+stc": Reported(81.13, ratio=188),
        "fedavg+dgc": Reported(80.64, ratio=281),
        "afd+dgc": Reported(81.96, ratio=375),
        "fjord+dgc": Reported(82.16, ratio=375),
        "fedbiad+dgc": Reported(82.96, ratio=375),
    },
    "wikitext-2": {
        "fedavg+fedpaq": Reported(32.04, ratio=4),
        "fedavg+signsgd": Reported(30.62, ratio=32),
        "fedavg+stc": Reported(28.92, ratio=206),
        "fedavg+dgc": Reported(31.58, ratio=359),
        "afd+dgc": Reported(31.24, ratio=428),
        "fjord+dgc": Reported(30.92, ratio=408),
        "fedbiad+dgc": Reported(33.78, ratio=612),
    },
}
"""Table II, by data set and recipe: the compressors alone are on FedAvg."""

TIME_SAVED: dict[str, dict[str, float]] = {
    "fashion-mnist": {"feddrop": -29.64, "afd": -23.91, "fjord": -21.54},
    "wikitext-2": {"feddrop": -66.67, "afd": -72.00, "fjord": -43.61},
}
"""FedBIAD's time to accuracy against other methods', in percent (section VI-C)."""

FJORD_BY_WIDTH: dict[str, tuple[float, ...]] = {
    "fjord": (83.9, 85.6, 86.2, 85.7, 84.8),
    "fjord+kd": (83.7, 86.1, 86.6, 86.5, 85.9),
}
"""Accuracy of FjORD (Horvath et al., 2021) at the widths 0.2, 0.4 ... 1, as Flower's baseline reports it of CIFAR-10,
IID: ResNet-18, 100 clients in five equal clusters, 10 a round, 500 rounds of one epoch at step size 0.1.
"""

TCS_ACCURACY: dict[str, float] = {
    "centralised": 92.23,
    "top-k": 92.19,
    "tcs": 92.44,
    "tcs-l2": 92.58,
    "tcs-l4": 92.53,
    "tcs-l4-q5": 92.49,
    "tcs-lf": 92.12,
    "tcs-plf": 92.14,
    "tcs-momentum": 93.10,
}
"""Accuracy by variant on CIFAR-10, ResNet-18, step size 0.5 (Ozfatura et al., 2021, Tables I and III)."""

VARDROP: dict[str, dict[str, float]] = {
    "mnist": {"accuracy": 98.35, "non-zeros": 1.9, "traffic": 11.6},
    "fashion-mnist": {"accuracy": 89.46, "non-zeros": 4.3, "traffic": 12.1},
    "cifar-10": {"accuracy": 90.32, "non-zeros": 2.4, "traffic": 11.4},
}
"""In percent, with 4 devices from a random start (Du et al., Tables 3 to 5)."""
