"""The nouns everything is made of: layout, pattern, selection, bundle, errors. Imports numpy and msgspec alone."""
