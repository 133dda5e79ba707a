"""A device's own data: one file a source, found by its name. ``csv:readings.csv?label=state`` opens ``csv.py``'s."""
