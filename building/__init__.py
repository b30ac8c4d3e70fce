"""How this project is built and installed: read by setup.py and pip, not part of the wheel."""
