"""dist.reshard from Shard to Partial works in dygraph and is an error in a static program.

No reshard function of static programs is suitable, and ``choose_reshard_func`` returns None.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/distributed/auto_parallel/static/reshard_funcs/base_reshard_func.py:34 `return None`
:prints:
    None
:should print:
    SToPReshardFunction
:change:
    Register one that gathers (Shard to Replicate) and then keeps the value on one process (Replicate to
    Partial), as dygraph does.
:workaround: llm_npu.patches.auto_parallel.fix_shard_to_partial
"""

import paddle.distributed as dist
from paddle.base.libpaddle import pir
from paddle.distributed.auto_parallel.static.reshard_funcs import reshard_func_register
from paddle.distributed.auto_parallel.static.reshard_funcs.base_reshard_func import choose_reshard_func

reshard_func_register.register_reshard_funcs()
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
shard = pir.create_tensor_dist_attribute(mesh, [0, -1], {})
partial = pir.create_tensor_dist_attribute(mesh, [-1, -1], {0: dist.ReduceType.kRedSum})
function = choose_reshard_func(shard, partial)
print(function and type(function).__name__)
