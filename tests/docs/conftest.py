"""The documentation's generator, docs/generated_pages.py, can be imported."""

import sys

from places import ROOT

sys.path.append(str(ROOT / "docs"))
