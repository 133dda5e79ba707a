"""On-device runtimes: one file each, all behind :class:`edge_fl.runtimes.base.Runtime`."""
