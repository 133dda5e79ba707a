"""What the exporter's programs cost on this machine."""
