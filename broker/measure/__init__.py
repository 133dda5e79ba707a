"""What a coordinator costs on this machine."""
