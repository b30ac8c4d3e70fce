"""``python -m llm_npu.doctor``, the same as ``llm-npu doctor``."""

import sys

from llm_npu.commands.doctor import main
from llm_npu.core import program

if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv[1:]))
