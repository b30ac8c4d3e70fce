"""The parts of run_versions.py: environments, features, results, the page."""

from building.installed_paddle import RELEASES as _BY_PROCESSOR

RELEASES = _BY_PROCESSOR["x86_64"]
REFERENCE = RELEASES[-1]  # reference for the losses of the others
