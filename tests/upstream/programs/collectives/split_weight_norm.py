"""With tensor parallelism and sep_degree, gradients are clipped by a norm that is too large.

``_global_norm`` sums the squares of split weights over ``get_check_parallel_group``. That group contains the
group ``sep``, whose ranks all have the same weights and gradients, so the sum is multiplied by its size.

:versions: paddlepaddle 3.3.1
:device: npu, 4 processes
:at:
    paddle/distributed/fleet/meta_optimizers/dygraph_optimizer/hybrid_parallel_optimizer.py:87 `if not (dp_fl`
:prints:
    sum of squares over two parts: 4.0
:should print:
    sum of squares over two parts: 2.0
:change: Use the branch of ``split_norm_comm``, the groups ``mp`` and ``pp``, if ``sep_degree`` is above 1.
:workaround: llm_npu.patches.hybrid_parallel.fix_split_weight_norm
"""

import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import hybrid_parallel_optimizer

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "sep_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
groups = fleet.get_hybrid_communicate_group()
clip = hybrid_parallel_optimizer.HybridParallelClipGrad(paddle.nn.ClipGradByGlobalNorm(1.0), groups)
of_split_weights, of_whole_weights = paddle.ones([1]), paddle.zeros([1])
clip._global_norm(of_split_weights, of_whole_weights)
print("sum of squares over two parts:", float(of_split_weights))
