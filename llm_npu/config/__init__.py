"""The flags of a run: fields of dataclasses with PaddleNLP's names, read from the command line or a file.

    arguments = read(argv)     # every flag's value, checked; --help ends here. No framework is imported
    ...                        # choose arguments.early.device: it decides which plugin Paddle loads
    run = arguments.build()    # imports the library of models
    for name, why in run.ineffective:
        print(f"--{name} has no effect: {why}")

``parse(argv)`` does both at once. Every function raises ``UserError`` for bad input, which commands turn
into exit code 2. ``flags()`` returns every flag. The modules:

    read               command line and file -> typed, checked values, without a framework
    written            names and values as a user writes them: the file, other launchers' names
    flag               the metadata of a flag's field: help, limits, aliases, when it has no effect
    arguments          the flags of the model, the data, preferences and the fused operators; RunConfig
    training           the flags of training, evaluation and checkpoints
    library_flags      the library's remaining flags
    formats            flags whose values have a grammar: --device, --split, --profile, --dump_tensors
    no_effect          the reasons for "has no effect" that flags share; environment variables without effect
    conflicts          flags that contradict each other
    model_checks       flags that contradict the model
    early              what must be known before paddle is imported
    build              values -> RunConfig; imports the library of models
"""

from .arguments import DataArguments, FusedArguments, ModelArguments, PreferenceArguments, RunConfig
from .early import Early, process_count
from .formats import ProfileWindow, profile_window
from .model_checks import check_model
from .no_effect import ineffective_variables
from .read import Arguments, flags, parse, read

__all__ = [
    "Arguments",
    "DataArguments",
    "Early",
    "FusedArguments",
    "ModelArguments",
    "PreferenceArguments",
    "ProfileWindow",
    "RunConfig",
    "check_model",
    "flags",
    "ineffective_variables",
    "parse",
    "process_count",
    "profile_window",
    "read",
]
