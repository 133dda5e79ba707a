"""Who an end is, and whom it believes: identity files, and keys that sign messages. Imports wire and transport."""
