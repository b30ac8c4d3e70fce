"""Puts the virtual NPU where Paddle looks for device plugins, in this process and in those it starts.

Paddle loads the libraries in the folder ``$CUSTOM_DEVICE_ROOT`` while it is being imported, and never again.
``import paddle_custom_device`` finds the supplied package through ``sys.path``. LD_LIBRARY_PATH is not
needed: PaddleNLP loads the plugin a second time by its bare file name, and the dynamic loader answers with
the library of that soname that is loaded already.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from .patches import patch_variables
from .plugin_files import LIBRARY, PLUGIN_FOLDER, SITE_FOLDER, check_fits, is_virtual
from .settings import cann_level, check_settings, device_count


def environment(base: Mapping[str, str] = os.environ, plugin: Path = PLUGIN_FOLDER) -> dict[str, str]:
    """The variables that give a child process the virtual NPU, to be added to its environment ``base``.

    ``base`` supplies the PYTHONPATH that is kept behind the supplied package, and the settings, which are
    checked. Raises what ``activate`` raises, except for a paddle that is imported already: a child imports
    its own.
    """
    check_settings(base)
    check_fits(plugin)
    search_path = [entry for entry in _search_path(base) if entry != str(SITE_FOLDER)]
    return {
        "CUSTOM_DEVICE_ROOT": str(plugin),
        "PYTHONPATH": os.pathsep.join([str(SITE_FOLDER), *search_path]),
        # Written out even when it is the default, so that the supplied package needs to know no default of
        # its own.
        "VIRTUAL_NPU_CANN": cann_level(base),
        **patch_variables(base),
    }


def activate(plugin: Path = PLUGIN_FOLDER) -> None:
    """Makes Paddle's device type ``npu`` the virtual NPU, in this process and in those that it starts.

    To be called before paddle is imported; calling it again does nothing. Unless VIRTUAL_NPU_QUIET=1, the
    process that turns it on says so in one line on stderr; processes that inherit it do not repeat the line.

    Raises RuntimeError if paddle is imported already, if the plugin is not built or was built for another
    Paddle, and ValueError for a VIRTUAL_NPU_* variable that is unknown, and for one of the plugin's variables
    (see ``settings``) with a value that it does not accept.
    """
    if "paddle" in sys.modules:
        if loaded_plugin() is not None:
            return
        raise RuntimeError(
            "paddle is imported already, and it looks for devices only while being imported. Call "
            "paddle_fused.virtual_npu.activate() before the first import of paddle, or run the program with "
            "`python -m paddle_fused.virtual_npu`."
        )
    inherited = is_active()
    variables = environment(plugin=plugin)
    os.environ.update(variables)
    if str(SITE_FOLDER) not in sys.path:
        # Where PYTHONPATH would have put it: behind the script's folder and before everything installed.
        sys.path.insert(0 if getattr(sys.flags, "safe_path", False) else 1, str(SITE_FOLDER))
    if not inherited and os.environ.get("VIRTUAL_NPU_QUIET") != "1":
        print(banner(), file=sys.stderr, flush=True)


def deactivate() -> None:
    """Undoes ``activate`` for this process and those it will start; RuntimeError once paddle is imported."""
    if "paddle" in sys.modules and loaded_plugin() is not None:
        raise RuntimeError("paddle is imported with the virtual NPU; only a new process can leave it out.")
    if _is_chosen():
        del os.environ["CUSTOM_DEVICE_ROOT"]
    remaining = [entry for entry in _search_path(os.environ) if entry != str(SITE_FOLDER)]
    if remaining:
        os.environ["PYTHONPATH"] = os.pathsep.join(remaining)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(SITE_FOLDER)]


def is_active() -> bool:
    """Whether ``npu`` is the virtual NPU here: already, if paddle is imported, else as soon as it is."""
    return loaded_plugin() is not None if "paddle" in sys.modules else _is_chosen()


def loaded_plugin() -> ctypes.CDLL | None:
    """The plugin's library if this process has loaded it, else None."""
    if not _is_chosen():
        return None
    try:
        return ctypes.CDLL(
            str(Path(os.environ["CUSTOM_DEVICE_ROOT"]) / LIBRARY), os.RTLD_NOLOAD | os.RTLD_LAZY
        )
    except OSError:  # the loader's answer to RTLD_NOLOAD when the library is not loaded
        return None


def banner() -> str:
    """The line that says what this is, so that nobody takes it for a card."""
    last = device_count() - 1
    devices = "npu:0" if last == 0 else f"npu:0 to npu:{last}"
    return (
        f"VIRTUAL NPU: {devices} emulated on the host CPU, not a card; CANN level {cann_level()}. "
        "VIRTUAL_NPU_QUIET=1 silences this line."
    )


def _is_chosen() -> bool:
    root = os.environ.get("CUSTOM_DEVICE_ROOT", "")
    return root != "" and is_virtual(Path(root))


def _search_path(environ: Mapping[str, str]) -> list[str]:
    # An empty PYTHONPATH means none, but an empty entry among others means the working folder: keep those.
    text = environ.get("PYTHONPATH", "")
    return text.split(os.pathsep) if text else []
