"""The virtual NPU's ``paddle_custom_device.npu``: the operators of its plugin, and its version.

Attributes:
    full_version: version of the plugin's Paddle, with ``+virtual``.
    cann_version: the emulated CANN release, VIRTUAL_NPU_CANN.
    git_commit_id, custom_op_git_commit_id: a note instead of a commit.
"""

import os

from paddle.version import full_version as _paddle_version

from . import ops
from .ops import *  # noqa: F403

full_version = _paddle_version + "+virtual"
cann_version = os.environ["VIRTUAL_NPU_CANN"]
git_commit_id = "none: virtual NPU, an emulation on the host CPU"
custom_op_git_commit_id = git_commit_id

__all__ = ["version", *ops.__all__]


def version() -> dict[str, str]:
    """Prints and returns version, commit, custom_op commit and cann, with the keys of paddle-custom-npu.

    The values identify the virtual NPU: the version ends in ``+virtual``, and a note replaces the commits.
    ``cann`` is the emulated version; CANN is neither installed nor used.
    """
    fields = {
        "version": full_version,
        "commit": git_commit_id,
        "custom_op commit": custom_op_git_commit_id,
        "cann": cann_version,
    }
    for name, value in fields.items():
        print(f"{name}: {value}")
    return fields


def __getattr__(name: str):
    raise AttributeError(
        f"paddle_custom_device.npu has no {name!r} on the virtual NPU. It provides version() and "
        f"the operators {', '.join(ops.__all__)}. The inference passes (npu.passes), the export of profiles "
        "(npu.profile) and other operators of paddle-custom-npu require a card and its package."
    )
