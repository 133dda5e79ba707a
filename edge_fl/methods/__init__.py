"""Dropping methods: one file each, found by name (see docs/extend.md)."""
