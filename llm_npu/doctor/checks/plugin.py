"""The device plugin: whether it was built for this Paddle."""

from __future__ import annotations

from collections.abc import Iterator

from paddle_fused import libraries

from ..finding import Finding, error, ok, warning
from ..setup import Setup


def files(setup: Setup) -> Iterator[Finding]:
    """The native libraries: where they are, the Paddle and the C++ sources that they were built for and from.

    A problem: libraries that are not built, that a folder with other sources hides, or that were built for
    another Paddle or from other sources than stand beside them.
    """
    try:
        libraries.check_built()
        if setup.kind == "virtual":
            setup.variables_of_device()
    except libraries.SetupError as failure:
        yield error("plugin", failure.message, failure.fix)
        return
    except ValueError:
        return  # reported by the check of the device
    if libraries.is_outdated():
        what = f"the native libraries in {libraries.ROOT} were built from other C++ sources than those in it"
        yield warning("plugin", what, libraries.how_to_build())
    elif setup.kind == "virtual":
        yield ok(
            "plugin", f"the virtual NPU in {libraries.folder()} was built for the Paddle that is installed"
        )


CHECKS = {"plugin": files}
