"""cross_entropy gives wrong gradients at a second backward with retain_graph=True, without an error.

The gradient operator writes the gradient into the saved softmax (``inplace : (softmax -> input_grad)``), also
when the graph is retained. The next ``backward`` and ``paddle.grad`` take that gradient for the softmax.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/phi/ops/yaml/backward.yaml `cross_entropy_with_softmax_grad`
:prints:
    backward 1: [-0.5, 0.5]
    backward 2: [-1.0, 0.0]
:should print:
    backward 1: [-0.5, 0.5]
    backward 2: [-0.5, 0.5]
:change: Run the gradient operator in-place only if the graph is not retained.
:workaround: none
"""

import paddle
import paddle.nn.functional as F

logits = paddle.to_tensor([0.0, 0.0], stop_gradient=False)
loss = F.cross_entropy(logits, paddle.to_tensor(0))
for count in (1, 2):
    logits.clear_gradient()
    loss.backward(retain_graph=True)
    print(f"backward {count}: {logits.grad.tolist()}")
