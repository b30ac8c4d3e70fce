"""One Python function for each operator of the plugin, for dygraph and static graphs.

Paddle's generator for custom operators creates them from the plugin's registrations, with inputs and
attributes in lower case and in the order of the registration. The result is one tensor or a list.
"""

import os

from paddle.base import core
from paddle.utils.cpp_extension import extension_utils

LIBRARY = "libpaddle-custom-npu.so"


def _is_custom(operator: str) -> bool:
    # Paddle has no list of custom operators. This look-up succeeds for forward custom operators only.
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
            "paddle_custom_device comes from the virtual NPU here, and the virtual NPU is not active: call "
            "virtual_npu.activate() before importing paddle, or run the program through "
            "`python -m virtual_npu`."
        )
    # Paddle's result omits operators that others, such as PaddleNLP, registered before: hence the look-up.
    extension_utils.load_op_meta_info_and_register_op(os.path.join(root, LIBRARY))
    return sorted(filter(_is_custom, core.get_all_op_names()))


__all__ = _register()

for _name in __all__:
    exec(compile(extension_utils._custom_api_content(_name), f"<paddle_custom_device.npu.{_name}>", "exec"))
