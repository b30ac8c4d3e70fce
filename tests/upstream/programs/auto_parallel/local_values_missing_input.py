"""A static auto-parallel program cannot have an operator with a missing input among local values.

Between ``dtensor_to_local`` and ``dtensor_from_local`` a program computes with local values. Paddle
gives each such operator the mesh of its inputs, and asks even an input that is not there, such as
layer_norm's bias, for its producer. A local parameter that is trained fails in the same way, at its
optimizer's missing master weight. With that mended, a layer's local tensors stay without a mesh ("no
attribute 'process_mesh'").

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/distributed/auto_parallel/static/utils.py:1131 `tmp_op_dist_attr = operand.get_defining_op().`
:error: AttributeError: 'NoneType' object has no attribute 'dist_attr'
:should print:
    0.0
:change:
    Skip operands for which ``operand.initialized()`` is False, and give producers without a mesh that of
    their first consumer.
:workaround: paddle_fused.captured._local_values_have_a_mesh, paddle_fused/sharding/local_map.py
"""

import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.api import dtensor_from_local, dtensor_to_local
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

mesh = dist.ProcessMesh([0], dim_names=["x"])
replicate = [dist.Replicate()]


class Normalised(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        ones = paddle.nn.initializer.Constant(1.0)
        self.weight = dist.shard_tensor(self.create_parameter([2], default_initializer=ones), mesh, replicate)

    def forward(self, x):
        local, weight = (dtensor_to_local(tensor, mesh, replicate) for tensor in (x, self.weight))
        return dtensor_from_local(paddle.nn.functional.layer_norm(local, 2, weight, None), mesh, replicate)


layer = Normalised()
optimizer = dist.shard_optimizer(paddle.optimizer.SGD(0.1, parameters=layer.parameters()))
x = dist.shard_tensor(paddle.ones([4, 2]), mesh, replicate)
specs = [[DistributedInputSpec.from_dtensor(x, name)] for name in ("x", "label")]
program = dist.to_static(layer, None, lambda y, label: y.sum(), optimizer, input_spec=specs)
program.train()
print(float(program(x, x)))
