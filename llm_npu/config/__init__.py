"""The flags of a run: dataclass fields named as in PaddleNLP, read from the command line or a file.

    arguments = read(argv)     # every flag's value, checked; --help exits here. Imports no framework
    ...                        # choose arguments.early.device: it decides which plugin Paddle loads
    run = arguments.build()    # imports the model library
    for name, why in run.ineffective:
        print(f"--{name} has no effect: {why}")

``parse(argv)`` combines both. Every function raises ``UserError`` for bad input, which commands turn into
exit code 2. ``flags()`` returns all flags. The modules:

    read               command line and file -> typed, checked values, without a framework
    written            argument files, and flag names of other launchers
    flag               the metadata of a flag: help, limits, aliases, when it has no effect
    arguments          flags of the model, the data, DPO and the fused operators; RunConfig
    training           flags of training, evaluation and checkpoints
    library_flags      remaining flags of the model library
    formats            flags with a value syntax: --device, --split, --profile, --dump_tensors
    no_effect          shared reasons for "has no effect"; environment variables without effect
    conflicts          flags that contradict each other
    schedules          flags that contradict the schedule of a pipeline
    model_checks       flags that contradict the model
    early              settings needed before paddle is imported
    build              values -> RunConfig; imports the model library
"""

from .arguments import DataArguments, FusedArguments, ModelArguments, PreferenceArguments, RunConfig
from .early import Early, process_count
from .formats import ProfileWindow, layer_range, profile_window
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
    "layer_range",
    "parse",
    "process_count",
    "profile_window",
    "read",
]
