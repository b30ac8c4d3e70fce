"""topk of a tensor without rows loses its shape in a captured program.

The kernel returns early and leaves the dimension as it was inferred before the number of choices was
known, -1. In dygraph it is [0, 2].

:versions: paddlepaddle 3.2.2 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/cpu/top_k_kernel.cc `TopkKernel`
:prints:
    dygraph [0, 2]
    program [0, -1]
:should print:
    dygraph [0, 2]
    program [0, 2]
:change: Resize the outputs by k before the early return.
:workaround: none
"""

import paddle


class Chosen(paddle.nn.Layer):
    def forward(self, x):
        return paddle.topk(x, 2, axis=-1)[1]


for kind, layer in (("dygraph", Chosen()), ("program", paddle.jit.to_static(Chosen(), full_graph=True))):
    print(kind, list(layer(paddle.zeros([0, 4])).shape))
