"""The program that ``probe`` starts: runs the stages and reports on each.

Prints a line of JSON at the start and at the end of each stage, because the process may die in between.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from importlib import metadata

from llm_npu.core.errors import UserError
from llm_npu.models import library

from .probe import DEVICE, HOST_OPERATORS, LIBRARY, MARK, OPERATORS, PADDLE, SHOWN


def say(**what) -> None:
    print(f"\n{MARK}{json.dumps(what)}", flush=True)  # paddle may have left an unfinished line


def import_paddle() -> dict:
    import paddle

    return {"paddle": paddle.__version__}


def compute() -> dict:
    """Compute a matmul on the device that the environment selects, and check the result."""
    import paddle

    has_npu = "npu" in paddle.device.get_all_custom_device_type()
    name = "npu:0" if has_npu else "cpu"
    paddle.device.set_device(name)
    product = paddle.matmul(paddle.full([2, 3], 2.0), paddle.full([3, 2], 0.5))
    result = product.numpy().tolist()
    if result != [[3.0, 3.0], [3.0, 3.0]]:
        raise UserError(f"2 * 0.5 summed three times is {result}")
    return {"computed_on": name}


def plugin_operators() -> dict:
    from paddle_fused import info

    return {"operators": info.plugin_operators()}


def host_operators() -> dict:
    import paddle_fused

    paddle_fused.load_operators()
    return {}


def import_library() -> dict:
    """Import the parts of PaddleNLP or PaddleFormers that the trainer needs; no-op without either."""
    name = library.installed_or_none()
    if name is None:
        return {}  # reported by the check of the packages
    importlib.import_module(f"{name}.transformers")
    return {"library": f"{name} {metadata.version(name)}"}


RUN: dict[str, Callable[[], dict]] = {
    PADDLE: import_paddle,
    DEVICE: compute,
    OPERATORS: plugin_operators,
    HOST_OPERATORS: host_operators,
    LIBRARY: import_library,
}


def main(stages: list[str]) -> int:
    for stage in stages:
        say(begins=stage)
        try:
            facts = RUN[stage]()
        except Exception as error:  # every failure is a result
            say(failed={stage: f"{type(error).__name__}: {_first_line(error)}"})
            if stage == PADDLE:
                return 0  # the other stages need paddle
        else:
            say(facts=facts)
    return 0


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [""])[0][:SHOWN]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
