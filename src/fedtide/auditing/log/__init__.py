"""Participation logs: reading them and looking up who took part."""
