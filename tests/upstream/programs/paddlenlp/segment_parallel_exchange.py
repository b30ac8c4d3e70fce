"""Segment parallelism (sep_parallel_degree) sends uninitialized memory: losses are NaN or random.

``_reshard_qkv`` calls ``dist.alltoall(comm_tensor_list, output_list)``. Since Paddle 3 the first argument is
``out_tensor_list``, so every rank sends its empty buffers and overwrites its inputs.

:versions: paddlenlp 3.0.0b4 with paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddlenlp/transformers/segment_parallel_utils.py:81 `dist.alltoall(comm_tensor_list, output_list, group=`
:prints:
    heads of all ranks: False
:should print:
    heads of all ranks: True
:change: ``dist.alltoall(output_list, comm_tensor_list, group=group)``.
:workaround: llm_npu.patches.hybrid_parallel.fix_segment_parallel_exchange
"""

import paddle
import paddle.distributed as dist
from paddlenlp.transformers.segment_parallel_utils import _reshard_qkv

dist.init_parallel_env()
rank = dist.get_rank()
own = paddle.full([1, 2, 4], 1.0 + rank)  # [B, S/2, N]: every rank has its half of the rows
heads = _reshard_qkv(own, None, split_axis=2, concat_axis=1)  # [B, S, N/2]
print("heads of all ranks:", heads[0, :, 0].tolist() == [1.0, 1.0, 2.0, 2.0])
