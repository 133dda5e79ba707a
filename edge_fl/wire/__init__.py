"""Bytes: frames, masks, values, messages. Imports edge_fl.core."""
