"""``one_rank.py FOLDER``: records two steps, and prints as JSON what the virtual NPU says has run."""

import json
import sys

import paddle

import virtual_npu
from llm_npu import profiling


def main(folder: str) -> None:
    paddle.set_device("npu:0")
    layer = paddle.nn.Linear(64, 32)
    x, double = paddle.randn([16, 64]), paddle.ones([8], dtype="float64")

    def step() -> None:
        loss = layer(x).sum() + double.add(double).cast("float32").sum()
        loss.backward()
        layer.clear_gradients()
        paddle.lgamma(x)

    options = {"shapes": True, "memory": True, "call_sites": True}
    with profiling.Capture(folder, skip=1, warmup=1, active=2, **options) as capture:
        for number in range(6):
            if number == 2:
                virtual_npu.reset_kernel_record()
            step()
            if number == 3:
                ran = virtual_npu.kernel_record()
            capture.step()
    print(json.dumps({"ran": ran}))


if __name__ == "__main__":
    main(sys.argv[1])
