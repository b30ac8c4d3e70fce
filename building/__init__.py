"""Builds and installs this project; used by setup.py and pip, and not part of the wheel."""
