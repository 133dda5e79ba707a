"""Emulated fleets: the agents that real devices run, in processes of this machine."""
