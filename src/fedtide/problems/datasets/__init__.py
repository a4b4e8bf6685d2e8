"""Data sets: loading them by name or from a folder, as arrays of features and labels."""
