"""An interleaved pipeline (virtual_pp_degree) hangs on custom devices.

``_batched_p2p_ops`` issues up to four transfers as one group, in an order in which every stage receives
from the stage before it, before it sends to the next one. Custom devices have no grouping:
``ProcessGroupCustom`` inherits a ``StartCoalescing`` that does nothing, and the transfers run on the
compute stream, one after the other. The stages of the ring wait for each other. (The virtual NPU detects
it, and says so; a card hangs.)

:versions: paddlepaddle 3.3.1
:device: npu, 4 processes
:environment: VIRTUAL_NPU_COLLECTIVE_TIMEOUT=2 VIRTUAL_NPU_SYNC_SENDS=1
:at:
    paddle/distributed/fleet/meta_parallel/pp_utils/p2p_communication.py:398 `def _batched_p2p_ops(`
    paddle/fluid/distributed/collective/process_group_custom.h `ProcessGroupCustom`
:error: ...Ranks wait for each other...
:should print:
    [1.0, 3.0]
:change:
    Where the group cannot coalesce, order the transfers as ``_p2p_ops`` does: even stages send first,
    odd ones receive first, and those to the next stage precede those back. And let
    ``ProcessGroupCustom`` call the plugin's ``xccl_group_start`` and ``xccl_group_end``.
:workaround: llm_npu.patches.hybrid_parallel.fix_interleaved_pipeline_order
"""

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"pp_degree": dist.get_world_size()}
fleet.init(is_collective=True, strategy=strategy)
groups = fleet.get_hybrid_communicate_group()
p2p_communication.initialize_p2p_groups(groups)
own = paddle.full([3], float(dist.get_rank()))
from_before, from_next = paddle.empty([3]), paddle.empty([3])
p2p_communication._batched_p2p_ops(own, from_before, own, from_next, groups)  # in the ring of stages
print(sorted([float(from_before[0]), float(from_next[0])]))
