"""Secure aggregation over rows: the sum of a cohort's updates, and no single one. Imports core, wire and identity."""
