"""The Paddle of the target environment, which determines the build and the requirements.

pip builds in an isolated environment, where the machine's Paddle cannot be imported. If this project required
a fixed release of Paddle, pip would replace the release that the card's plugin needs. So Paddle is searched
by a separate process of the same Python, without pip's settings.
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

# The releases that wheels of this project are built for, by processor: Paddle 3.3 has no wheel for aarch64.
RELEASES = {"x86_64": ("3.0.0", "3.1.1", "3.2.2", "3.3.0", "3.3.1"), "aarch64": ("3.0.0", "3.1.1", "3.2.2")}
NEWEST = RELEASES.get(platform.machine(), RELEASES["x86_64"])[-1]

# The second line: the distributions that provide the package, usually one.
LOOK = """
import importlib.metadata, importlib.util, json
spec = importlib.util.find_spec("paddle")
names = sorted({d.metadata["Name"] for d in importlib.metadata.distributions()
                if (d.metadata["Name"] or "").lower().startswith("paddlepaddle")})
print(json.dumps([spec.origin if spec else None, names]))
"""


class InstalledPaddle(NamedTuple):
    """An installed package ``paddle``: its folder, which contains the headers, and its build."""

    folder: Path
    build: paddle_release.PaddleBuild


@functools.cache
def find_paddle() -> InstalledPaddle | None:
    """The Paddle to build for, or None if there is none. Raises SetupError if it is not supported."""
    apart = {
        name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONNOUSERSITE")
    }
    # First as seen by this process: pip may not have isolated anything.
    for environment in (os.environ, apart):
        done = subprocess.run(
            [sys.executable, "-c", LOOK], env=environment, cwd="/", capture_output=True, text=True, check=True
        )
        origin, names = json.loads(done.stdout)
        if others := [name for name in names if name.lower() != "paddlepaddle"]:
            raise SetupError(
                f"{others[0]} is installed; accepted: paddlepaddle, into which the plugins of devices load.",
                f"Run `pip uninstall {others[0]}`, or install in a new environment.",
            )
        if origin is not None:
            folder = Path(origin).parent
            build = paddle_release.build_in(folder)
            paddle_release.number(build.version)
            return InstalledPaddle(folder, build)
    return None


def version() -> str:
    """The installed release, such as 3.2.2, or the release that is going to be installed."""
    there = find_paddle()
    return there.build.version.partition("+")[0] if there else NEWEST
