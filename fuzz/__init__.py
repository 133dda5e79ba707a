"""Fuzz campaigns: everything that takes bytes from outside, fed with bytes that nobody meant (``python -m fuzz``)."""
