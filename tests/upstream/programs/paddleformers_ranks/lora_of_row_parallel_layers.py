"""Under tensor parallelism over N ranks, A of a row-parallel LoRA layer starts sqrt(N) times too large.

The initializer's bound is 1 / sqrt(the matrix's rows), and a rank's matrix has a part of the rows only.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/peft/lora/lora_layers.py:210 `shape=[self.input_size_per_partition, r],`
    paddleformers/peft/lora/lora_layers.py:362 `shape=[self.input_size_per_partition, r],`
:prints:
    bound / bound on one rank: 1.41
:should print:
    bound / bound on one rank: 1.00
:change: Initialize with ``KaimingUniform(fan_in=in_features, ...)``.
:workaround: llm_npu.patches.paddleformers.parallel.fix_lora_of_row_parallel_layers
"""

import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import model_parallel_random_seed
from paddleformers.peft.lora.lora_layers import RowParallelLoRALinear

paddle.set_device("npu")
strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
model_parallel_random_seed(1)
layer = RowParallelLoRALinear(4096, 16, has_bias=False, input_is_parallel=True, r=16)
bound = float(layer.lora_A.abs().max())
print(f"bound / bound on one rank: {bound * 4096**0.5:.2f}")
