"""The commands of a device and of a bundle, and what all commands share. Imports any room of edge_fl."""
