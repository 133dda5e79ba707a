"""A client's local round: batches, patterns, update, evaluation. Imports recipes, runtimes and data."""
