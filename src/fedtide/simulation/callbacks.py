"""Callbacks that a run reports its progress to."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int, float | None], None]
"""Takes the completed rounds, all rounds, and the last evaluated loss, after every round."""
