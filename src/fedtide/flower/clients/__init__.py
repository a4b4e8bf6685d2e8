"""The client side: a Flower ClientApp, a client's data as a task, and its memory on disk."""
