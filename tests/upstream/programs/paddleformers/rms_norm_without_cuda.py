"""Every model fails on the CPU and on NPUs with the default fuse_rms_norm=True.

``RMSNorm.forward`` calls ``fused_rms_norm_ext``, a kernel of CUDA builds only, on every device but
"iluvatar_gpu".

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/nn/norm.py:72 `return fused_rms_norm_ext(hidden_states, self.weight, self`
:error: ...The kernel `fused_rms_norm_ext` is not registered...
:should print:
    [1.0, 1.0]
:change:
    Take the fused kernel only where Paddle is compiled with CUDA (or the device's plugin registers it),
    and the composed branch below it elsewhere.
:workaround: llm_npu.patches.paddleformers.without_cuda.supply_rms_norm
"""

import paddle
from paddleformers.nn.norm import RMSNorm
from paddleformers.transformers import LlamaConfig

norm = RMSNorm(LlamaConfig(hidden_size=2, rms_norm_eps=0.0))
print(norm(paddle.full([2], 3.0)).tolist())
