"""Scores by name, one file a family: sums that add over batches and devices, and a function of them. Imports core."""
