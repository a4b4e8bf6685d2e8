"""Presentations of an audit: terminal, HTML page and JSON."""
