"""Runs a program of tests/upstream after a patch, on every rank; hands over what it prints.

with_a_patch.py FOLDER PROGRAM MODULE PATCH
"""

import contextlib
import importlib
import io
import os
import runpy
import sys

import paddle
import ranks

paddle.set_device(f"npu:{os.environ['PADDLE_TRAINER_ID']}")
_, _, program, module, patch = sys.argv
getattr(importlib.import_module(module), patch)()
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    runpy.run_path(program)
ranks.write({"printed": printed.getvalue().splitlines()[-1]})
