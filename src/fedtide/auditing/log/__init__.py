"""Participation logs: reading them, and indexing them by round and by client."""
