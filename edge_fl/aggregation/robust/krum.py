"""Krum (Blanchard et al. 2017, *Machine Learning with Adversaries*, section 3): one update stands for all."""

from edge_fl.aggregation.robust.multi_krum import MultiKrum

__all__ = ["RULE"]


class Krum(MultiKrum):
    """Keeps the one update that lies closest to most others."""

    name = "krum"

    def kept(self, updates: int, attackers: int) -> int:
        """One."""
        del updates, attackers
        return 1


RULE = Krum
