"""Runs PaddleFormers' command line, or a user's program, on npu with fused operators.

This process selects the device and replaces itself by the program in a new environment, which is inherited by
the processes that the program starts (see ``llm_npu.core.on_import``).
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

from llm_npu import device
from llm_npu.core import on_import, program
from llm_npu.core.errors import UserError
from llm_npu.formers import images, models, switches

USAGE = """usage: llm-npu formers train FILE.yaml [KEY=VALUE ...]    as paddleformers-cli train ...
       llm-npu formers SCRIPT [ARGS ...]
       llm-npu formers -m MODULE [ARGS ...]    such as -m paddle.distributed.launch ... train.py ...
       llm-npu formers --env

Runs the unmodified program on an Ascend card, or else on the virtual NPU, with the fused operators of
paddle_fused in every process of the job.
  --env    print the environment as shell commands: eval "$(llm-npu formers --env)"
"""
COMMANDS = ("train", "export")  # commands of paddleformers-cli that start processes
COMMAND_LINE = ("-m", "paddleformers.cli.cli")
HOOKS = {
    "paddleformers": "llm_npu.formers.fused",
    "paddleformers.trainer.trainer": "llm_npu.formers.trainer",
}


def environment() -> dict[str, str]:
    """The variables to set in addition to those of ``device.select``. Raises UserError."""
    return {
        **on_import.environment(HOOKS),
        # paddleformers-cli starts "python", which may be another interpreter.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }


def check(arguments: list[str]) -> list[str]:
    """Notes about these arguments. Raises UserError if paddleformers-cli cannot run with them."""
    if importlib.util.find_spec("paddleformers") is None:
        raise UserError(
            f"{arguments[0]} is a command of PaddleFormers, which is not installed here; accepted: an "
            "environment "
            'with PaddleFormers. Run pip install ".[paddleformers]" in the project\'s folder.'
        )
    if len(arguments) < 2 or (
        arguments[1].endswith((".yaml", ".yml", ".json")) and not Path(arguments[1]).is_file()
    ):
        problem = f"there is no file {arguments[1]}" if len(arguments) > 1 else "no file was given"
        raise UserError(f"{arguments[0]}: {problem}; accepted: a YAML or JSON file. Name one.")
    notes = switches.without_effect(arguments[1:])
    if arguments[0] == "train":
        switches.check(arguments[1:])
        settings = switches.read_settings(arguments[1:])
        models.check(settings)
        notes += images.check(settings)
    return notes


def main(arguments: list[str]) -> int:
    """Replace this process by the program. Returns an exit code only if there is nothing to run."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr, end="")
        return 0 if arguments else 2
    before = dict(os.environ)
    notes = check(arguments) if arguments[0] in COMMANDS else []
    device.select("npu")
    os.environ.update(environment())
    if arguments == ["--env"]:
        changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in changed.items()))
        return 0
    if arguments[0] in COMMANDS:
        for sentence in notes:
            print(f"llm_npu.formers: {sentence}", file=sys.stderr, flush=True)
        arguments = [*COMMAND_LINE, *arguments]
    on_import.become(arguments)


if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv[1:]))
