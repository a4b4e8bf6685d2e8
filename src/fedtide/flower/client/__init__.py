"""The client side: a Flower ClientApp and the local state of a client."""
