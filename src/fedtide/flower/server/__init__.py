"""The server side: the strategy, its state, its messages and who the clients are."""
