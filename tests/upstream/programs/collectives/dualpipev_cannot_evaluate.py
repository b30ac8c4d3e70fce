"""DualPipeV has no eval_batch of its own, and the one of 1F1B fails.

``DualPipeVParallel`` inherits ``eval_batch``, which calls ``_wrap_data`` and the methods of ``_p2p_helper``
as 1F1B has them. ``forward_backward_pipeline(forward_only=True)`` does not serve instead: in that
mode ``_get_forward_inputs`` drops the inputs before it returns them, and ``_obtain_send_message`` announces
only the shapes of tensors with a gradient, of which there are none under ``no_grad``.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/distributed/fleet/meta_parallel/dualpipev.py:114 `if self.forward_only:`
    paddle/distributed/fleet/meta_parallel/pipeline_parallel.py:1416 `micro_dataset = self._wrap_data(data)`
    paddle/distributed/fleet/meta_parallel/pp_utils/p2p_communication.py:229 `if d.stop_gradient:`
:error: TypeError: DualPipeVParallel._wrap_data() missing 1 required positional argument: 'phase'
:should print:
    loss: 16.0
:change:
    Return the inputs before they are dropped, announce all shapes, and define ``eval_batch`` by
    ``forward_backward_pipeline(data, None, forward_only=True)``.
:workaround: llm_npu.patches.dualpipev.fix_evaluation
"""

import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer


class Double(paddle.nn.Layer):
    def forward(self, inputs):
        return (inputs[0] if isinstance(inputs, list) else inputs) * 2.0


strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"pp_degree": 2, "pp_configs": {"use_dualpipev": True}}
strategy.pipeline_configs = {"accumulate_steps": 4, "micro_batch_size": 1}
fleet.init(is_collective=True, strategy=strategy)
layers = [LayerDesc(Double) for _ in range(4)]
model = PipelineLayer(layers, num_stages=2, loss_fn=lambda y, label: y[0].mean(), use_dualpipev=True)
model = fleet.distributed_model(model)
with paddle.no_grad():
    losses = model.eval_batch([paddle.ones([4, 1]), paddle.ones([4, 1])], compute_loss=True)
print("loss:", float(losses))
