"""Agents as processes on emulated hardware and links, and brokers to test them with. Imports edge_fl and broker."""
