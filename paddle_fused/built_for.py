"""Which Paddle the native libraries were built for, and whether it is the one that is installed.

They rely on private layouts of Paddle, so they fit one build of it only. Nothing here imports paddle: that
would load the plugin before it is known to fit.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from . import libraries
from .libraries import SetupError
from .paddle_release import PaddleBuild, installed_paddle


def built_for(stamp_file: Path) -> PaddleBuild:
    """What the file says that the build has left beside the libraries; SetupError if it says nothing."""
    libraries.check_built(stamp_file)
    try:
        stamp = json.loads(stamp_file.read_text(encoding="utf-8"))
        return PaddleBuild(str(stamp["paddle_version"]), str(stamp["paddle_commit"]))
    except (ValueError, KeyError, TypeError):
        what = f"{stamp_file} does not say which Paddle the libraries beside it were built for."
        raise SetupError(what, libraries.how_to_build()) from None


def check_fits(stamp_file: Path, subject: str) -> PaddleBuild:
    """The Paddle that is installed; SetupError if ``subject``, whose file this is, was built for another."""
    wanted, found = built_for(stamp_file), installed_paddle()
    if wanted != found:
        raise SetupError(
            f"{subject} was built for {wanted}, but {found} is installed. It uses private parts of Paddle "
            "and fits one build only.",
            f"Install paddlepaddle {wanted.version}, or build it again. {libraries.how_to_build()}",
        )
    return found


@functools.cache
def check_package() -> None:
    """SetupError if the libraries of paddle_fused are for another Paddle. Python alone serves them all."""
    if libraries.is_built(libraries.folder()):
        check_fits(libraries.folder() / libraries.STAMP, f"paddle_fused in {libraries.folder().parent}")
