"""The report as text and as an HTML page."""
