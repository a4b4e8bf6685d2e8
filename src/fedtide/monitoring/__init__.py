"""Watching a federation while it runs: a page, and metrics for Prometheus, from its ledger."""
