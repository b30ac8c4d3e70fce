"""Runs an unmodified Paddle program on the virtual NPU, or prints the required environment.

The process replaces itself with a new interpreter in that environment, so ``sys.argv``, ``sys.path``,
``__main__``, tracebacks, signals and the exit code behave as in the program itself.

Paddle logs several INFO lines for every plugin that it loads. The environment suppresses them unless the user
has configured Paddle's logging.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from paddle_fused import command_line
from paddle_fused.command_line import UserError

from .activation import banner, environment, is_active

USAGE = """usage: python -m virtual_npu SCRIPT [ARGS ...]
       python -m virtual_npu -m MODULE [ARGS ...]
       python -m virtual_npu --env

Runs an unmodified Paddle program on the virtual NPU, an emulation of an Ascend card on the host CPU.
All arguments are passed to Python unchanged, so -c CODE and Python's own options work too.
Paddle's INFO lines are suppressed unless GLOG_minloglevel, GLOG_v or GLOG_vmodule is set.
  --env    print the environment as shell commands: eval "$(python -m virtual_npu --env)"
"""


LOG_CHOICES = ("GLOG_minloglevel", "GLOG_v", "GLOG_vmodule")  # GLOG_v and GLOG_vmodule log as INFO


def export_lines(variables: dict[str, str]) -> str:
    """The variables as ``export`` commands of a POSIX shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def main(arguments: list[str]) -> int:
    """Replaces this process with the program. Returns an exit code only if there is nothing to run."""
    if not arguments:
        print(USAGE, file=sys.stderr, end="")
        return 2
    if arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    try:
        variables = environment()
    except (RuntimeError, ValueError) as error:
        raise UserError(str(error)) from error
    if not any(name in os.environ for name in LOG_CHOICES):
        variables["GLOG_minloglevel"] = "1"  # warnings and errors
    if not is_active() and os.environ.get("VIRTUAL_NPU_QUIET") != "1":
        print(banner(), file=sys.stderr, flush=True)
    if arguments == ["--env"]:
        print(export_lines(variables))
        return 0
    # This interpreter's options, such as -O, -W and -X. multiprocessing passes them on in the same way.
    options = subprocess._args_from_interpreter_flags()
    os.execve(sys.executable, [sys.executable, *options, *arguments], {**os.environ, **variables})


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
