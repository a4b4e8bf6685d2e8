"""Recommended methods and settings."""
