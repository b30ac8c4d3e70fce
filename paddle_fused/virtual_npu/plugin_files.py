"""Where the plugin's files are, and whether they were built for the Paddle that is installed.

The plugin works on Paddle's kernel table and relies on its private layouts, so it fits one build of Paddle
only. Nothing here imports paddle: that would load the plugin before it is known to fit.
"""

from __future__ import annotations

import json
from pathlib import Path

from .. import libraries
from ..libraries import SetupError
from ..paddle_release import PaddleBuild, installed_paddle

PLUGIN = libraries.folder() / libraries.PLUGIN
PLUGIN_FOLDER = PLUGIN.parent
LIBRARY = PLUGIN.name  # the name that paddle-custom-npu and PaddleNLP use, too
STAMP = Path(libraries.STAMP).name

PACKAGE_FOLDER = Path(__file__).resolve().parent
SITE_FOLDER = PACKAGE_FOLDER / "site"  # holds the package paddle_custom_device and nothing else


def stamp_file(plugin: Path) -> Path:
    """The file that says what the plugin in folder ``plugin`` was built for.

    It stands next to the folder, not in it: Paddle and PaddleNLP walk over everything in a plugin folder.
    """
    return plugin.parent / STAMP


def is_virtual(plugin: Path) -> bool:
    """Whether the folder ``plugin`` holds the virtual NPU and not, say, the plugin for a card."""
    return (plugin / LIBRARY).is_file() and stamp_file(plugin).is_file()


def built_for(plugin: Path) -> PaddleBuild:
    """The Paddle that the plugin in folder ``plugin`` was built for; SetupError if it is not built."""
    libraries.check_built(plugin / LIBRARY, stamp_file(plugin))
    try:
        stamp = json.loads(stamp_file(plugin).read_text(encoding="utf-8"))
        return PaddleBuild(str(stamp["paddle_version"]), str(stamp["paddle_commit"]))
    except (ValueError, KeyError, TypeError):
        what = f"{stamp_file(plugin)} does not say which Paddle the plugin was built for."
        raise SetupError(what, libraries.how_to_build()) from None


def check_fits(plugin: Path) -> PaddleBuild:
    """The Paddle that is installed; SetupError if the plugin in folder ``plugin`` is for another one."""
    wanted, found = built_for(plugin), installed_paddle()
    if wanted != found:
        raise SetupError(
            f"The virtual NPU in {plugin} was built for {wanted}, but {found} is installed. It uses "
            "private parts of Paddle and fits one build only.",
            f"Install paddlepaddle {wanted.version}, or build it again. {libraries.how_to_build()}",
        )
    return found
