"""Locates the plugin's files and checks that they were built for the installed Paddle.

Nothing here imports paddle, which would load the plugin before this check.
"""

from __future__ import annotations

from pathlib import Path

from paddle_fused import built_for, libraries
from paddle_fused.paddle_release import PaddleBuild

PLUGIN = libraries.folder() / libraries.PLUGIN
PLUGIN_FOLDER = PLUGIN.parent
LIBRARY = PLUGIN.name  # also the name in paddle-custom-npu and PaddleNLP
STAMP = Path(libraries.STAMP).name

PACKAGE_FOLDER = Path(__file__).resolve().parent
SITE_FOLDER = PACKAGE_FOLDER / "site"  # contains only the package paddle_custom_device


def stamp_file(plugin: Path) -> Path:
    """The stamp file of the plugin in the folder ``plugin``: the Paddle that it was built for.

    It is next to the folder, not in it, because Paddle and PaddleNLP read everything in a plugin folder.
    """
    return plugin.parent / STAMP


def is_virtual(plugin: Path) -> bool:
    """Whether the folder ``plugin`` contains the virtual NPU, not the plugin for cards."""
    return (plugin / LIBRARY).is_file() and stamp_file(plugin).is_file()


def check_fits(plugin: Path) -> PaddleBuild:
    """The installed Paddle. Raises SetupError if the plugin in ``plugin`` is missing or for another one."""
    libraries.check_built(plugin / LIBRARY)
    return built_for.check_fits(stamp_file(plugin), f"The virtual NPU in {plugin}")
