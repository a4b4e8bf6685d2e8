"""The ledger: the participation log of a live federation, in a database."""
