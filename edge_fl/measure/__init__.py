"""What a user measures on their own hardware, and how results are timed and shown. Imports core and wire."""
