"""Selections: which of the available clients are asked to train."""
