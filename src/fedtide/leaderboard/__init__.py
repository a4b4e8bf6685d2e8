"""A standing comparison: every method under many patterns of participation, tuned alike."""
