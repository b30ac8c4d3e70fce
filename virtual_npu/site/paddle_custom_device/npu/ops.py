"""One Python function per operator of the plugin, for dygraph and static graphs.

Paddle's generator for custom operators creates them from the plugin's registrations. Inputs and attributes
have lower-case names and the order of the registration. The result is one tensor or a list.
"""

import os

from paddle.base import core
from paddle.utils.cpp_extension import extension_utils

LIBRARY = "libpaddle-custom-npu.so"


def _is_custom(operator: str) -> bool:
    # Paddle does not list custom operators. This look-up succeeds only for forward custom operators.
    try:
        core.eager._get_custom_operator_inplace_map(operator)
    except RuntimeError:
        return False
    return True


def _register() -> list[str]:
    """Registers the plugin's operators if necessary, and returns the names of all custom operators."""
    root = os.environ.get("CUSTOM_DEVICE_ROOT", "")
    if "npu" not in core.get_all_custom_device_type() or not os.path.isfile(os.path.join(root, LIBRARY)):
        raise ImportError(
            "paddle_custom_device belongs to the virtual NPU, and the virtual NPU is not active: call "
            "virtual_npu.activate() before importing paddle, or run the program through "
            "`python -m virtual_npu`."
        )
    # Paddle's result omits operators that other code, such as PaddleNLP, registered before: hence the
    # look-up.
    extension_utils.load_op_meta_info_and_register_op(os.path.join(root, LIBRARY))
    return sorted(filter(_is_custom, core.get_all_op_names()))


__all__ = _register()

for _name in __all__:
    exec(compile(extension_utils._custom_api_content(_name), f"<paddle_custom_device.npu.{_name}>", "exec"))
