"""paddle.grad after a backward through a PyLayer ends the process.

``paddle.grad`` copies the nodes of the graph. The gradient node of a PyLayer drops its context after it has
run, also with ``retain_graph=True``, and its copy constructor increments the reference count of the context
without a test for null.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/eager/pylayer/py_layer_node.h `GradNodePyLayer::Copy`
    paddle/fluid/eager/pylayer/py_layer_node.cc `GradNodePyLayer::operator()`
:prints:
    backward: [2.0]
:ends: SIGSEGV
:should print:
    backward: [2.0]
    grad: [2.0]
:change:
    Keep the context while the graph is retained. ``Py_XINCREF`` in the copy constructor, and an error for a
    null ``ctx_`` when the node runs.
:workaround: none
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
y.backward(retain_graph=True)
print("backward:", x.grad.tolist(), flush=True)
print("grad:", paddle.grad([y], [x])[0].tolist())
