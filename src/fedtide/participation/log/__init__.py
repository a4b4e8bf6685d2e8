"""Participation logs: schema, files, and the ledger of a live federation."""
