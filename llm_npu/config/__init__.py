"""The arguments of a run: dataclasses with PaddleNLP's own names, read from the command line or a file.

    early = Early.read(argv)        # before paddle is imported: the device decides which plugin is loaded
    ...                             # choose the device, then
    run = parse(argv)               # imports paddlenlp
    for name, why in ineffective(run):
        print(f"--{name} has no effect: {why}")

Every function raises ``ValueError`` with one sentence for bad input; scripts turn it into exit code 2.
Importing this package imports neither paddle nor paddlenlp.
"""

from .arguments import DataArguments, ModelArguments, RunConfig
from .early import Early
from .fused import FusedArguments
from .ineffective import ineffective
from .model_checks import check_model
from .parallel_checks import process_count
from .parse import parse
from .profile import ProfileWindow, profile_window
from .variables import ineffective_variables

__all__ = [
    "DataArguments",
    "Early",
    "FusedArguments",
    "ModelArguments",
    "ProfileWindow",
    "RunConfig",
    "check_model",
    "ineffective",
    "ineffective_variables",
    "parse",
    "process_count",
    "profile_window",
]
