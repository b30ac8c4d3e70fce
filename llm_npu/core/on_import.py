"""Prepares every process of a job before it imports a library. Imports no framework.

The processes inherit an environment that makes Python import ``site/sitecustomize.py`` at startup.
"""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from llm_npu.core import paths
from llm_npu.core.errors import UserError

SITE_FOLDER = Path(__file__).resolve().parent / "site"
VARIABLE = "LLM_NPU_ON_IMPORT"


def environment(modules: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that make modules prepare each process that imports a library.

    Args:
        modules: {library: module}. The library is a package, or a module of one. ``before_library`` and
            ``after_library`` of the module run before and after the library is executed.

    Raises UserError if another sitecustomize would take precedence.
    """
    hiding = importlib.machinery.PathFinder.find_spec("sitecustomize", [sysconfig.get_path("purelib")])
    if hiding is not None:
        raise UserError(
            f"{hiding.origin} takes precedence over the sitecustomize that prepares the job's processes; "
            "accepted: an environment without a sitecustomize. Move its content to a .pth file."
        )
    inherited = os.environ["PYTHONPATH"].split(os.pathsep) if os.environ.get("PYTHONPATH") else []
    sources = str(SITE_FOLDER.parents[2])  # ranks may run programs in other folders
    others = [entry for entry in os.environ.get(VARIABLE, "").split(",") if entry]
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([str(SITE_FOLDER), *inherited, sources])),
        VARIABLE: ",".join(dict.fromkeys([*others, *map("=".join, modules.items())])),
    }


def become(arguments: list[str]) -> NoReturn:
    """Replace this process by Python with ``arguments``, in the environment of this process.

    The options of this interpreter (-O, -W, -X) are passed on, as in virtual_npu.
    """
    paths.ensure_home()
    options = subprocess._args_from_interpreter_flags()
    os.execv(sys.executable, [sys.executable, *options, *arguments])
