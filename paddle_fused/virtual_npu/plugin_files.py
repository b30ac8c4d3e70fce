"""Where the plugin's files are, and whether they were built for the Paddle that is installed.

Nothing here imports paddle: that would load the plugin before it is known to fit.
"""

from __future__ import annotations

from pathlib import Path

from .. import built_for, libraries
from ..paddle_release import PaddleBuild

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


def check_fits(plugin: Path) -> PaddleBuild:
    """The Paddle that is installed; SetupError if the plugin in ``plugin`` is missing or for another."""
    libraries.check_built(plugin / LIBRARY)
    return built_for.check_fits(stamp_file(plugin), f"The virtual NPU in {plugin}")
