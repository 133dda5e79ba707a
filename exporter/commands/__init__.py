"""The exporter's commands."""
