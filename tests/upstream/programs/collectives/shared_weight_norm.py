"""A pipeline with a tied embedding clips its gradients by a norm that is too large.

Stages that share a weight all hold the sum of its gradients, and the norm should count only the first
one, which ``is_firstly_shared`` says. ``_synchronize_shared_weights`` looks for the name of the
parameter ("embedding_0.w_0") in a list of names of attributes ("weight"), finds none, and so every stage
counts it.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/distributed/fleet/meta_parallel/parallel_layers/pp_layers.py:759 `if param.name in comm[`
:prints:
    stages that count the weight: 2
:should print:
    stages that count the weight: 1
:change:
    Look at the attributes: ``for name in comm["weight_attr"]: getattr(comm["layer"],
    name).is_firstly_shared = self.global_rank == min(comm["ranks"])``.
:workaround: llm_npu.patches.hybrid_parallel.fix_shared_weight_norm
"""

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import PipelineLayer, SharedLayerDesc

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"pp_degree": dist.get_world_size()}
fleet.init(is_collective=True, strategy=strategy)


def head(layer, hidden):
    return paddle.matmul(hidden, layer.weight, transpose_y=True)


tied = [
    SharedLayerDesc(
        "tied",
        paddle.nn.Embedding,
        forward_func=function,
        shared_weight_attr="weight",
        num_embeddings=4,
        embedding_dim=2,
    )
    for function in (None, head)
]
model = PipelineLayer(layers=tied, num_stages=2, loss_fn=paddle.nn.CrossEntropyLoss())
(weight,) = model.parameters()
counts = paddle.to_tensor(float(getattr(weight, "is_firstly_shared", True)))
dist.all_reduce(counts)
print("stages that count the weight:", int(counts))
