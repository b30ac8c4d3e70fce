"""The sum over two ranks of tensors on the virtual NPU. Run without a rank, it starts both.

``python two_ranks.py FOLDER`` prints what they found, as JSON.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shared"))
import ranks

import virtual_npu

if "PADDLE_TRAINER_ID" not in os.environ:
    os.environ["VIRTUAL_NPU_QUIET"] = "1"
    virtual_npu.activate()
    print(json.dumps(ranks.run(Path(__file__).resolve(), 2, Path(sys.argv[1]), timeout=1200)))
    sys.exit()

import platform

import numpy as np
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
rank = dist.get_rank()
sums = {}
for dtype in ("float32", "bfloat16", "int64"):
    tensor = paddle.to_tensor(np.arange(1003) % 16 * (rank + 1)).astype(dtype)
    dist.all_reduce(tensor)
    right = np.arange(1003) % 16 * 3  # exact in every dtype
    sums[dtype] = bool((tensor.astype("float32").numpy() == right).all())
ranks.write({"rank": rank, "place": str(tensor.place), "sums": sums, "machine": platform.machine()})
