"""One style and one way to save a figure, for reports, audits and papers."""
