"""Where the plugin's files are, and whether they were built for the Paddle that is installed.

The plugin works on Paddle's kernel table and relies on its private layouts, so it fits one build of Paddle
only. Nothing here imports paddle: that would load the plugin before it is known to fit.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

from .. import libraries
from ..libraries import SetupError

PLUGIN = libraries.folder() / libraries.PLUGIN
PLUGIN_FOLDER = PLUGIN.parent
LIBRARY = PLUGIN.name  # the name that paddle-custom-npu and PaddleNLP use, too
STAMP = Path(libraries.STAMP).name

PACKAGE_FOLDER = Path(__file__).resolve().parent
SITE_FOLDER = PACKAGE_FOLDER / "site"  # holds the package paddle_custom_device and nothing else


@dataclass(frozen=True)
class PaddleBuild:
    """One build of Paddle: its version, such as 3.3.1, and the commit it was built from."""

    version: str
    commit: str

    def __str__(self) -> str:
        return f"paddlepaddle {self.version} (commit {self.commit[:12]})"


def stamp_file(plugin: Path) -> Path:
    """The file that says what the plugin in folder ``plugin`` was built for.

    It stands next to the folder, not in it: Paddle and PaddleNLP walk over everything in a plugin folder.
    """
    return plugin.parent / STAMP


def is_virtual(plugin: Path) -> bool:
    """Whether the folder ``plugin`` holds the virtual NPU and not, say, the plugin for a card."""
    return (plugin / LIBRARY).is_file() and stamp_file(plugin).is_file()


def paddle_folder() -> Path | None:
    """The folder of the package that ``import paddle`` would import, or None if there is none."""
    spec = importlib.util.find_spec("paddle")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def installed_paddle() -> PaddleBuild:
    """The Paddle that ``import paddle`` would import, read from its files; SetupError if there is none."""
    folder = paddle_folder()
    if folder is None:
        raise SetupError("paddlepaddle is not installed for this Python.", libraries.how_to_build())
    version_file = folder / "version" / "__init__.py"
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError as error:
        what = f"The version of Paddle cannot be read from {version_file}: {error.strerror}."
        raise SetupError(what, "Reinstall paddlepaddle.") from None
    fields = dict(re.findall(r"""^(full_version|commit)\s*=\s*['"]([^'"]*)['"]""", text, re.MULTILINE))
    if len(fields) < 2:
        what = f"{version_file} does not say the version and the commit of Paddle."
        raise SetupError(what, "Reinstall paddlepaddle.")
    return PaddleBuild(fields["full_version"], fields["commit"])


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
