"""set_value and copy_ change a tensor that backward needs, and backward uses the new values without an error.

Operators in-place advance ``inplace_version``, and ``backward`` compares it with the version that it saved.
``set_value`` and ``copy_`` write to the tensor's memory and leave the version as it is.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/pybind/eager_method.cc `tensor_method_copy_`
:prints:
    scale_: RuntimeError
    copy_: [10.0]
    set_value: [10.0]
:should print:
    scale_: RuntimeError
    copy_: RuntimeError
    set_value: RuntimeError
:change: ``bump_inplace_version()`` on the tensor that was written, in both methods.
:workaround: paddle_fused/masks/row_indices.py
"""

import paddle

five = paddle.to_tensor([5.0])
changes = {
    "scale_": lambda tensor: tensor.scale_(5.0),
    "copy_": lambda tensor: tensor.copy_(five, True),
    "set_value": lambda tensor: tensor.set_value(five),
}
for name, change in changes.items():
    x = paddle.to_tensor([1.0], stop_gradient=False)
    hidden = x * 1
    loss = hidden * hidden
    with paddle.no_grad():
        change(hidden)
    try:
        loss.backward()
        print(f"{name}: {x.grad.tolist()}")
    except RuntimeError:
        print(f"{name}: RuntimeError")
