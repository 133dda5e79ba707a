"""The commands of the papers' experiments, below edge-fl bench."""
