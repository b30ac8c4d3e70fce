"""Activates the virtual NPU as Paddle's device plugin in this process and its children.

Paddle loads the libraries in the folder ``$CUSTOM_DEVICE_ROOT`` only while it is imported. ``import
paddle_custom_device`` finds the supplied package through ``sys.path``. LD_LIBRARY_PATH is not needed: when
PaddleNLP loads the plugin again by file name, the dynamic loader returns the loaded library with that soname.
This module does not import paddle, because that would load the plugin before ``check_fits``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from paddle_fused import built_for, libraries
from paddle_fused.paddle_release import PaddleBuild

from .patches import patch_variables
from .settings import cann_level, card, check_settings, checks, device_count

PLUGIN = libraries.folder() / libraries.PLUGIN
PLUGIN_FOLDER = PLUGIN.parent
LIBRARY = PLUGIN.name  # also the name in paddle-custom-npu and PaddleNLP
STAMP = Path(libraries.STAMP).name

PACKAGE_FOLDER = Path(__file__).resolve().parent
SITE_FOLDER = PACKAGE_FOLDER / "site"  # contains only the package paddle_custom_device
# Paddle's allocator then requests and releases the memory of every tensor, so the checks see its lifetime.
UNCACHED_MEMORY = {"FLAGS_auto_growth_chunk_size_in_mb": "0", "FLAGS_free_idle_chunk": "1"}
# Without this, paddle.distributed.launch of Paddle 3.0 ignores custom devices; later releases do not need it.
LAUNCHED_DEVICE = "PADDLE_XCCL_BACKEND"


def environment(base: Mapping[str, str] = os.environ, plugin: Path = PLUGIN_FOLDER) -> dict[str, str]:
    """The environment variables that activate the virtual NPU in a child process with environment ``base``.

    PYTHONPATH contains the supplied package, followed by the PYTHONPATH of ``base``. Raises the same errors
    as ``activate``, except for an imported paddle.
    """
    check_settings(base)
    check_fits(plugin)
    search_path = [entry for entry in _search_path(base) if entry != str(SITE_FOLDER)]
    return {
        "CUSTOM_DEVICE_ROOT": str(plugin),
        "PYTHONPATH": os.pathsep.join([str(SITE_FOLDER), *search_path]),
        # Set even if it is the default, so the supplied package does not need its own default.
        "VIRTUAL_NPU_CANN": cann_level(base),
        LAUNCHED_DEVICE: "npu",
        **(UNCACHED_MEMORY if set(checks(base)) - {"sync"} else {}),
        **patch_variables(base),
    }


def activate(plugin: Path = PLUGIN_FOLDER) -> None:
    """Activates the virtual NPU as Paddle's device type ``npu``, in this process and its children.

    Call it before importing paddle. Further calls do nothing. Prints one line to stderr, unless
    VIRTUAL_NPU_QUIET=1; processes that inherit the virtual NPU do not print it again.

    Raises RuntimeError if paddle is already imported, or if the plugin is not built or was built for a
    different Paddle. Raises ValueError for an unknown VIRTUAL_NPU_* variable or an invalid value (see
    ``settings``).
    """
    if "paddle" in sys.modules:
        if loaded_plugin() is not None:
            return
        raise RuntimeError(
            "paddle is already imported, and it searches for devices only while it is imported. Call "
            "virtual_npu.activate() before the first import of paddle, or run the program with "
            "`python -m virtual_npu`."
        )
    inherited = is_active()
    variables = environment(plugin=plugin)
    os.environ.update(variables)
    if str(SITE_FOLDER) not in sys.path:
        # The same position as an entry of PYTHONPATH: after the script's folder, before installed packages.
        sys.path.insert(0 if getattr(sys.flags, "safe_path", False) else 1, str(SITE_FOLDER))
    if not inherited and os.environ.get("VIRTUAL_NPU_QUIET") != "1":
        print(banner(), file=sys.stderr, flush=True)


def deactivate() -> None:
    """Undoes ``activate``, also for future child processes.

    Raises RuntimeError if paddle has been imported with it.
    """
    if "paddle" in sys.modules and loaded_plugin() is not None:
        raise RuntimeError(
            "paddle is already imported with the virtual NPU; only a new process can run without it."
        )
    if _is_chosen():
        del os.environ["CUSTOM_DEVICE_ROOT"]
        os.environ.pop(LAUNCHED_DEVICE, None)
    remaining = [entry for entry in _search_path(os.environ) if entry != str(SITE_FOLDER)]
    if remaining:
        os.environ["PYTHONPATH"] = os.pathsep.join(remaining)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(SITE_FOLDER)]


def is_active() -> bool:
    """Whether ``npu`` is the virtual NPU in this process, or will be once paddle is imported."""
    return loaded_plugin() is not None if "paddle" in sys.modules else _is_chosen()


def loaded_plugin() -> ctypes.CDLL | None:
    """The plugin's library if this process has loaded it, otherwise None."""
    if not _is_chosen():
        return None
    try:
        return ctypes.CDLL(
            str(Path(os.environ["CUSTOM_DEVICE_ROOT"]) / LIBRARY), os.RTLD_NOLOAD | os.RTLD_LAZY
        )
    except OSError:  # RTLD_NOLOAD: the library is not loaded
        return None


def banner() -> str:
    """The line that identifies the virtual NPU, so that nobody mistakes it for a card."""
    last = device_count() - 1
    devices = "npu:0" if last == 0 else f"npu:0 to npu:{last}"
    return (
        f"VIRTUAL NPU: {devices} emulated on the host CPU, not a card; emulates a {card()} with CANN "
        f"{cann_level()}. VIRTUAL_NPU_QUIET=1 silences this line."
    )


def _is_chosen() -> bool:
    root = os.environ.get("CUSTOM_DEVICE_ROOT", "")
    return root != "" and is_virtual(Path(root))


def _search_path(environ: Mapping[str, str]) -> list[str]:
    # An empty PYTHONPATH has no entries, but an empty entry among others is the working folder: keep these.
    text = environ.get("PYTHONPATH", "")
    return text.split(os.pathsep) if text else []


def stamp_file(plugin: Path) -> Path:
    """The file that names the Paddle for which the plugin in the folder ``plugin`` was built.

    It is next to the folder, because Paddle and PaddleNLP load every file in a plugin folder.
    """
    return plugin.parent / STAMP


def is_virtual(plugin: Path) -> bool:
    """Whether the folder ``plugin`` contains the virtual NPU rather than the plugin for cards."""
    return (plugin / LIBRARY).is_file() and stamp_file(plugin).is_file()


def check_fits(plugin: Path) -> PaddleBuild:
    """The installed Paddle. Raises SetupError if the plugin is missing or was built for another one."""
    libraries.check_built(plugin / LIBRARY)
    return built_for.check_fits(stamp_file(plugin), f"The virtual NPU in {plugin}")
