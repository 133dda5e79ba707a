"""The device program: connects, registers, trains its kept rows, uploads, keeps its state."""
