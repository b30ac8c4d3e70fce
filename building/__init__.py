"""How this project is built and installed: read by setup.py and pip, part of no wheel."""
