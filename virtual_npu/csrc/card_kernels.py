"""Writes a table of kernels (kernel -> dtypes) as C++ initializers, one {"add", "float32"} per line.

Usage: card_kernels.py npu_kernels.json card_kernels.inc
"""

import json
import sys
from pathlib import Path

source, target = map(Path, sys.argv[1:3])
kernels = json.loads(source.read_text())
rows = [f'{{"{kernel}", "{dtype}"}},' for kernel, dtypes in sorted(kernels.items()) for dtype in dtypes]
target.write_text("\n".join(rows) + "\n")
