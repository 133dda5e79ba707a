"""Data sets, their partition over clients, and the batcher every trainer shares."""
