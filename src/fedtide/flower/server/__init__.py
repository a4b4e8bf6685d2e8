"""The server side: a Flower strategy and what it keeps."""
