"""A second backward through a PyLayer ends the process, also with retain_graph=True.

The gradient node of a PyLayer drops its reference to the context after it has run, whether the graph is
retained or not. The second ``backward`` reads the context through a null pointer. Without ``retain_graph``,
Paddle's own operators raise an error in that case.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/eager/pylayer/py_layer_node.cc `GradNodePyLayer::operator()`
:prints:
    backward 1: [2.0]
:ends: SIGSEGV
:should print:
    backward 1: [2.0]
    backward 2: [4.0]
:change:
    Remove ``Py_XDECREF(ctx_); ctx_ = nullptr;`` at the end of the function. Drop the context in
    ``ClearTensorWrappers``, which runs only when the graph is not retained, and raise an error for a null
    ``ctx_`` before it is read.
:workaround: paddle_fused/ops/layer.py
"""

import paddle


class Double(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dout):
        return dout * 2


x = paddle.to_tensor([1.0], stop_gradient=False)
y = Double.apply(x)
for count in (1, 2):
    y.backward(retain_graph=True)
    print(f"backward {count}: {x.grad.tolist()}", flush=True)
