"""The command line overwrites bf16 and fp16 of a YAML file in silence.

``FinetuningArguments.__post_init__`` sets ``bf16 = True`` and then follows ``compute_type``, whose
default is bf16. A file with ``bf16: false`` or ``fp16: true`` trains in bfloat16.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/cli/hparams/finetuning_args.py:310 `self.bf16 = True`
:prints:
    fp16 was asked for: bf16 True, fp16 False
:should print:
    ValueError
:change: Raise a ValueError if bf16 or fp16 contradicts compute_type, or let them choose it.
:workaround: none
"""

import tempfile

from paddleformers.cli.hparams.finetuning_args import FinetuningArguments

try:
    arguments = FinetuningArguments(output_dir=tempfile.mkdtemp(), bf16=False, fp16=True)
    print(f"fp16 was asked for: bf16 {arguments.bf16}, fp16 {arguments.fp16}")
except ValueError:
    print("ValueError")
