"""Federated learning for clients that come and go."""
