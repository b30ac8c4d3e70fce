"""The commands of this package: ``llm-npu train ...``, or ``python -m llm_npu train ...``.

Listing them imports nothing. A command that uses Paddle chooses the device before it imports Paddle.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

if not __package__:  # a launcher has started this file, whose folder would hide modules of other packages
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]


class Command(NamedTuple):
    """A row of the table of commands.

    Attributes:
        listens: the phase that the exit message names if a signal arrives before the command handles signals.
        explains: whether errors that Paddle raises get the doctor's explanation.
        prints_result: whether lost output makes the exit code 1.
    """

    module: str
    summary: str
    listens: str = ""
    explains: bool = False
    prints_result: bool = True


COMMANDS = {
    "train": Command(
        "commands.train",
        "train or fine-tune a language model",
        "before the first step",
        explains=True,
        prints_result=False,
    ),
    "generate": Command(
        "commands.generate", "continue prompts with a checkpoint", "before the last prompt", explains=True
    ),
    "export": Command(
        "commands.export", "write a checkpoint as a program for paddle.inference", explains=True
    ),
    "prepare_data": Command("commands.prepare_data", "tokenize text once, for many runs", explains=True),
    "merge_checkpoint": Command(
        "training.checkpoint.__main__", "merge the parts of a checkpoint from several machines"
    ),
    "plan": Command(
        "plan.__main__", "does a run fit on N cards, and how fast is it?", "before the plan was printed"
    ),
    "doctor": Command("commands.doctor", "examine the installation and the device, or explain a log"),
    "cann_bridge": Command("commands.cann_bridge", "a forwarding libopapi.so for a CANN that has none"),
    "profile": Command("profiling.__main__", "explain a profile"),
    "check_dtypes": Command(
        "commands.check_dtypes", "does a model stay on an Ascend card's cores?", explains=True
    ),
    "dtypes": Command("dtypes.__main__", "run a Paddle program with a warning for each line of float64"),
    "numerics": Command("numerics.__main__", "compare the tensors that two runs have dumped"),
    "formers": Command("formers.__main__", "run PaddleFormers' programs on npu with fused operators"),
    "accept_card": Command("acceptance.command", "compare a card with the virtual NPU", explains=True),
}
HELP = """usage: llm-npu COMMAND [arguments]        (or python -m llm_npu COMMAND)

Trains language models of PaddleNLP and PaddleFormers on Ascend NPUs, or on a virtual NPU without a card.

{commands}

llm-npu COMMAND --help has a command's arguments. Names may have hyphens in place of underscores.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command ``argv``, by default the command line of this process."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0).replace("-", "_") if words and not words[0].startswith("-") else ""
    command = COMMANDS.get(name)
    if command is None:
        from paddle_fused import command_line

        return command_line.run(_list, [name, *words])
    if command.listens:
        from llm_npu.core import stopping

        stopping.listen(command.listens)  # early: signals may come while the rest is imported
    module = importlib.import_module(f"llm_npu.{command.module}")
    from llm_npu.core import program

    if not command.explains:
        return program.run(module.main, words, output_is_result=command.prints_result)
    from llm_npu.doctor import explain

    explain.after_tracebacks()
    return program.run(module.main, words, explain.of_error, command.prints_result)


def _list(words: list[str]) -> int:
    """Print the commands; UserError for a name that is not among them."""
    from paddle_fused.command_line import BAD_INPUT, UserError, nearest_name

    if words in (["", "-h"], ["", "--help"], [""]):
        lines = [f"  {name:18}{command.summary}" for name, command in COMMANDS.items()]
        print(HELP.format(commands="\n".join(lines)), end="", file=sys.stdout if words[1:] else sys.stderr)
        return 0 if words[1:] else BAD_INPUT
    wrong = words[0] or words[1]
    nearest = nearest_name(wrong, COMMANDS)
    hint = f"did you mean {nearest}?" if nearest else "llm-npu --help lists the commands"
    raise UserError(f"{wrong!r:.80} is not a command; {hint}")


if __name__ == "__main__":
    sys.exit(main())
