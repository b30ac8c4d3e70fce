"""The Paddle of the target environment, which determines the build and the requirements.

pip builds in an isolated environment that hides the installed Paddle. A fixed Paddle requirement would make
pip replace the release that the card's plugin needs. A subprocess of the same Python therefore searches for
Paddle, without pip's environment variables.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from paddle_fused import paddle_release
from paddle_fused.libraries import SetupError

# The Paddle releases that this project builds wheels for. Paddle 3.3 has no aarch64 wheel.
RELEASES = {"x86_64": ("3.0.0", "3.1.1", "3.2.2", "3.3.0", "3.3.1"), "aarch64": ("3.0.0", "3.1.1", "3.2.2")}
NEWEST = RELEASES.get(platform.machine(), RELEASES["x86_64"])[-1]

# ``names``: the distributions that may provide the package, usually one.
LOOK = """
import importlib.metadata, importlib.util, json
spec = importlib.util.find_spec("paddle")
names = sorted({d.metadata["Name"] for d in importlib.metadata.distributions()
                if (d.metadata["Name"] or "").lower().startswith("paddlepaddle")})
print(json.dumps([spec.origin if spec else None, names]))
"""


class InstalledPaddle(NamedTuple):
    """The installed package ``paddle``: its folder, which contains the headers, and its build."""

    folder: Path
    build: paddle_release.PaddleBuild


@functools.cache
def find_paddle() -> InstalledPaddle | None:
    """The Paddle to build for, or None. Raises SetupError if it is not supported."""
    not_isolated = {
        name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONNOUSERSITE")
    }
    # First this process's environment: the build may not be isolated.
    for environment in (os.environ, not_isolated):
        done = subprocess.run(
            [sys.executable, "-c", LOOK], env=environment, cwd="/", capture_output=True, text=True, check=True
        )
        origin, names = json.loads(done.stdout)
        if others := [name for name in names if name.lower() != "paddlepaddle"]:
            raise SetupError(
                f"{others[0]} is installed; accepted: paddlepaddle, which supports custom-device plugins.",
                f"Run `pip uninstall {others[0]}`, or install in a new environment.",
            )
        if origin is not None:
            folder = Path(origin).parent
            build = paddle_release.build_in(folder)
            paddle_release.number(build.version)
            return InstalledPaddle(folder, build)
    return None


def version() -> str:
    """The installed release, such as 3.2.2, or the release that the build will install."""
    installed = find_paddle()
    return installed.build.version.partition("+")[0] if installed else NEWEST
