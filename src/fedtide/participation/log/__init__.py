"""Participation logs: the schema, files and the ledger of a live federation."""
