"""``paddle.device.synchronize`` refuses the CPU place.

Nothing is outstanding on the CPU place, so that there is nothing to wait for. Programs that run on any
device, such as PaddleFormers' trainer with gradient accumulation, end there. The message names every device
but the one that came.

:versions: paddlepaddle 3.3.1
:device: cpu
:at:
    paddle/device/__init__.py:1835 `raise TypeError(`
:error: TypeError: device should be gpu, xpu,...
:should print:
    done
:change: Return at once for a CPUPlace, as torch.cpu.synchronize does.
:workaround: llm_npu.patches.paddleformers.without_cuda.allow_synchronize
"""

import paddle

paddle.set_device("cpu")
paddle.device.synchronize()
print("done")
