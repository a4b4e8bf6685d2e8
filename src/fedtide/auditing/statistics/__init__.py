"""What is estimated from a participation log, and the tests behind it."""
