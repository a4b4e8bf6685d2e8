"""Participation logs: reading, and indexing by round and by client."""
