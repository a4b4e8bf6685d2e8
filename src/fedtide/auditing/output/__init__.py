"""An audit as text, JSON, HTML and figures."""
