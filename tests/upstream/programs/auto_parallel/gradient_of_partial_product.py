"""The backward pass of a matmul whose result is Partial fails if its operands are sharded along the
summed dimension.

The gradient gets the placements of the output, Partial, and ``MatmulGradInferSpmd`` requires that the
first operand and the gradient fit together, which Partial does not. A division of the result, even by
one, reduces it first and avoids the error.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/phi/infermeta/spmd_rules/matmul.cc:314 `MatmulGradInferSpmd`
:error: ...DistAttrsAreBasicallyEqual(x_single_dist_attr, y.dist_attr()) == true, but received...
:should print:
    [1.0, 1.0]
:change:
    Replicate an incoming gradient that is Partial before the rule is applied: the gradient of a sum of
    terms is the same for every term.
:workaround: paddle_fused/ops/linear_cross_entropy/op.py
"""

import paddle
import paddle.distributed as dist

dist.init_parallel_env()
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
x = dist.shard_tensor(paddle.create_parameter([4], "float32"), mesh, [dist.Shard(0)])
row = x.reshape([1, -1])
paddle.matmul(row, paddle.ones_like(row), transpose_y=True).reshape([]).backward()
print(x.grad._local_value().tolist())
