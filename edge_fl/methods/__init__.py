"""Dropping methods: one file each, found by name (see CONTRIBUTING.md)."""
