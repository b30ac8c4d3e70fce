"""Checks that the native libraries were built for the installed Paddle.

The libraries depend on private data layouts of Paddle, so they match only one build. This module does not
import paddle, because that would load the plugin before the check.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from . import libraries
from .libraries import SetupError
from .paddle_release import PaddleBuild, installed_paddle


def built_for(stamp_file: Path) -> PaddleBuild:
    """The Paddle build recorded in the stamp file. Raises SetupError if the file cannot be read."""
    libraries.check_built(stamp_file)
    try:
        stamp = json.loads(stamp_file.read_text(encoding="utf-8"))
        return PaddleBuild(str(stamp["paddle_version"]), str(stamp["paddle_commit"]))
    except (ValueError, KeyError, TypeError):
        what = f"{stamp_file} does not name the Paddle build that the libraries were built for."
        raise SetupError(what, libraries.how_to_build()) from None


def check_fits(stamp_file: Path, subject: str) -> PaddleBuild:
    """The installed Paddle. Raises SetupError if ``subject`` was built for a different one.

    ``stamp_file`` records the build of Paddle that ``subject`` was built for.
    """
    wanted, installed = built_for(stamp_file), installed_paddle()
    if wanted != installed:
        raise SetupError(
            f"{subject} was built for {wanted}, but {installed} is installed. It depends on Paddle's private "
            "data layouts and works with one build only.",
            f"Install paddlepaddle {wanted.version}, or rebuild. {libraries.how_to_build()}",
        )
    return installed


@functools.cache
def check_package() -> None:
    """Raises SetupError if the native libraries exist and were built for a different Paddle."""
    if libraries.is_built(libraries.folder()):
        check_fits(libraries.folder() / libraries.STAMP, f"paddle_fused in {libraries.folder()}")
