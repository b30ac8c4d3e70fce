"""Calls the plugin's operators as PaddleNLP does."""

import functools
import os
from pathlib import Path

import paddle


@functools.cache
def _register() -> None:
    for library in Path(os.environ["CUSTOM_DEVICE_ROOT"]).glob("*.so"):
        paddle.utils.cpp_extension.extension_utils.load_op_meta_info_and_register_op(str(library))


def run(name: str, *arguments) -> list[paddle.Tensor]:
    """Dygraph call; the outputs as a list."""
    _register()
    return paddle.base.core.eager._run_custom_op(name, *arguments)


def run_any_mode(name: str, *arguments) -> list:
    """The same through `paddle._C_ops`, which also works while a static program is built."""
    _register()
    return paddle._C_ops._run_custom_op(name, *arguments)
