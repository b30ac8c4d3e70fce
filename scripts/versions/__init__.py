"""Tests on several releases of Paddle: the sessions are in noxfile.py, the page is docs/versions.md."""
