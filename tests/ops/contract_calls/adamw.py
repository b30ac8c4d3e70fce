"""A step of AdamW: npu_apply_fused_adamw_v2."""

import paddle

from paddle_fused.compat import npu_apply_fused_adamw_v2


def step(number=1, amsgrad=False, largest=None, **changes):
    names = ("param", "grad", "exp_avg", "exp_avg_sq")
    tensors = {name: paddle.ones([4, 3]) for name in names} | changes
    npu_apply_fused_adamw_v2(*(tensors[name] for name in names), largest, number, amsgrad=amsgrad)


CALLS = [
    ("adamw.missing", lambda: step(grad=None)),
    ("adamw.missing", lambda: step(exp_avg=None, exp_avg_sq=None)),
    ("adamw.max_grad_norm", lambda: step(amsgrad=True)),
    ("adamw.dtype", lambda: step(grad=paddle.ones([4, 3], "float64"))),
    ("adamw.moment_dtype", lambda: step(exp_avg=paddle.ones([4, 3], "bfloat16"))),
    ("adamw.shape", lambda: step(grad=paddle.ones([3, 4]))),
    ("adamw.shape", lambda: step(amsgrad=True, largest=paddle.ones([4]))),
    ("adamw.step", lambda: step(0)),
    ("adamw.step", lambda: step(paddle.to_tensor([0.0]))),
    ("adamw.step", lambda: step(paddle.to_tensor([1, 2]))),
    ("adamw.step", lambda: step(paddle.to_tensor([1], "int32"))),
]
