"""Where things stand in a clone. All tests and their programs find the modules of this folder."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SHARED = TESTS / "shared"
ROOT = TESTS.parent
