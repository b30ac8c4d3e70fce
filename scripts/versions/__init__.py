"""What run_versions.py does: environments, features, results, the page."""

from building.paddle_there import RELEASES as _BY_PROCESSOR

RELEASES = _BY_PROCESSOR["x86_64"]
REFERENCE = RELEASES[-1]  # the losses of the others are compared with its
