"""The flags of a run: fields of dataclasses with PaddleNLP's names, read from the command line or a file.

    arguments = read(argv)     # every flag's value, checked; --help ends here. No framework is imported
    ...                        # choose arguments.early.device: it decides which plugin Paddle loads
    run = arguments.build()    # imports paddlenlp
    for name, why in run.ineffective:
        print(f"--{name} has no effect: {why}")

``parse(argv)`` does both at once. Every function raises ``UserError`` with one sentence for bad input, which
scripts turn into exit code 2. ``flag`` says what a flag is, and ``flags()`` returns all of them.
"""

from .arguments import DataArguments, FusedArguments, ModelArguments, RunConfig
from .early import Early
from .model_checks import check_model
from .profile import ProfileWindow, profile_window
from .read import Arguments, flags, parse, read
from .variables import ineffective_variables

__all__ = [
    "Arguments",
    "DataArguments",
    "Early",
    "FusedArguments",
    "ModelArguments",
    "ProfileWindow",
    "RunConfig",
    "check_model",
    "flags",
    "ineffective_variables",
    "parse",
    "profile_window",
    "read",
]
