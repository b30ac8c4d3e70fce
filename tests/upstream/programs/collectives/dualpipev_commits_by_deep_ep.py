"""DualPipeV does not train on custom devices.

``_commit_and_wait_comm`` calls ``deep_ep.get_event_from_custom_stream`` in every pass, but ``deep_ep`` is
None in builds without CUDA. The next line that fails asks ``ProcessGroupCustom`` for its stream, which it
does not have. Without these lines, ``batch_isend_irecv`` issues the transfers of a stage in an order in which
both stages send first. Custom devices have no grouping: where a send blocks until its data are received, as
on a card, the stages wait for each other.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:environment: VIRTUAL_NPU_SYNC_SENDS=1
:at:
    paddle/distributed/fleet/meta_parallel/dualpipev.py:390 `return deep_ep.get_event_from_custom_stream(`
    paddle/distributed/fleet/meta_parallel/dualpipev.py:398 `pp_raw_stream = self.pp_group.process_group.get_`
    paddle/distributed/fleet/meta_parallel/dualpipev.py:405 `fwd_reqs = batch_isend_irecv(self.comm_forward_`
:error: AttributeError: 'NoneType' object has no attribute 'get_event_from_custom_stream'
:should print:
    loss: 16.0
:change:
    Without ``deep_ep``, record no events and wait for the tasks of the transfers. Where the group cannot
    coalesce, order the transfers: even stages send first, odd ones receive first, and those towards the last
    stage precede those back.
:workaround: llm_npu.patches.dualpipev.fix_transfers
"""

import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer


class Scale(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.factor = self.create_parameter([1], default_initializer=paddle.nn.initializer.Constant(2.0))

    def forward(self, inputs):
        return (inputs[0] if isinstance(inputs, list) else inputs) * self.factor


strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"pp_degree": 2, "pp_configs": {"use_dualpipev": True}}
strategy.pipeline_configs = {"accumulate_steps": 4, "micro_batch_size": 1}
fleet.init(is_collective=True, strategy=strategy)
layers = [LayerDesc(Scale) for _ in range(4)]
model = PipelineLayer(layers, num_stages=2, loss_fn=lambda y, label: y[0].mean(), use_dualpipev=True)
optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(parameters=model.parameters()))
model = fleet.distributed_model(model)
print("loss:", float(model.train_batch([paddle.ones([4, 1]), paddle.ones([4, 1])], optimizer)))
