"""Builds the documentation site: `python -m site_builder` in the folder docs."""
