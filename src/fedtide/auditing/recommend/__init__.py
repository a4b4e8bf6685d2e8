"""Which algorithm to use, and with which settings."""
