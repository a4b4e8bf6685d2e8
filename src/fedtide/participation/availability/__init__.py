"""Availability processes: which clients could take part in each round."""
