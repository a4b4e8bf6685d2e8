"""Data sets: where they come from, and their samples as arrays."""
