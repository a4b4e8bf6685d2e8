"""A Flower federation on one machine, for demos and tests."""
