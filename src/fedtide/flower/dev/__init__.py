"""A Flower federation on one machine, for demonstrations and tests."""
