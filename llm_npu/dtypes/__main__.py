"""Runs any Paddle program and warns about each of its lines that uses float64 on npu.

This process selects the device, sets up the environment, and replaces itself with the program. Child
processes inherit the environment. On the virtual NPU the device emits the warnings; on a card,
``any_program`` does.
"""

from __future__ import annotations

import os
import sys

from llm_npu import device
from llm_npu.core import on_import, program

USAGE = """usage: llm-npu dtypes run [--host] [--operators] PROGRAM [ARGS ...]
       llm-npu dtypes run [--host] [--operators] -m MODULE [ARGS ...]

Runs an unmodified Paddle program on an Ascend card, or on the virtual NPU if there is no card. Emits an
AICPUWarning for each line that uses float64: one per operator, dtype and line, at most 10, and a summary at
exit.
  --host        also warn about other operators that a card runs on its host or its AICPU
  --operators   on the virtual NPU: watch operators called from Python, as on a card, instead of kernels
"""


def main(arguments: list[str]) -> int:
    """Replace this process with the program. Returns an exit code only if there is no program to run."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    options = {"--host": False, "--operators": False}
    program = arguments[1:]
    while program and program[0] in options:
        options[program.pop(0)] = True
    if arguments[:1] != ["run"] or not program:
        print(USAGE, file=sys.stderr, end="")
        return 2
    chosen = device.select("npu")
    watches_operators = options["--operators"] or chosen.kind == "card"
    warned = "0" if watches_operators else "host" if options["--host"] else "1"
    os.environ["VIRTUAL_NPU_AICPU_WARNINGS"] = warned
    if watches_operators:
        os.environ.update(on_import.environment({"paddle": "llm_npu.dtypes.any_program"}))
        os.environ["LLM_NPU_DTYPES_HOST"] = str(int(options["--host"]))
    on_import.become(program)


if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv[1:]))
