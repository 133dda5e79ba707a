"""Compressors: one file each, found by name. They compose with any method, as in ``fedbiad+dgc``."""
