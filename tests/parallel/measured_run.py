"""One of several ranks: runs scripts/run_llama_npu.py and reports its own peak memory in bytes.

measured_run.py FOLDER ARGUMENTS...
"""

import resource
import sys

import ranks

from llm_npu.commands import train

code = train.main(sys.argv[2:])
assert code == 0, code
ranks.write({"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10})
