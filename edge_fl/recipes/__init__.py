"""A method with a compressor, by name, and presets. Imports methods, compressors, aggregation and what these import."""
