"""Data and networks of the bundled examples, one module for each subject."""
