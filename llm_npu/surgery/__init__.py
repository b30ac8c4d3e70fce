"""The fused operators in PaddleNLP's models, without a change to their code.

    report = apply_fused_kernels(model)      # model: LlamaForCausalLM, Qwen2ForCausalLM, ...
    print(report)                            # each layer: fused, or the reason why not
    remove_fused_kernels(model)

Only what stateless layers compute is replaced, on the instances of this one model; parameters, names,
sharding annotations, state_dict and pickles stay PaddleNLP's. Which backend a call then runs on is decided
by ``paddle_fused`` for the tensors at hand.

`apply_kernel`, `apply_default_kernels` and `scan_all_kernels` have LLaMA-Factory's names,
`apply_fused_kernel` and the switches openMind's.
"""

from .apply import apply_fused_kernels, remove_fused_kernels
from .known_names import apply_default_kernels, apply_fused_kernel, apply_kernel, scan_all_kernels
from .registry import Kernel, NotFused, Replacement, kernel
from .report import Report, Row

__all__ = ["Kernel", "NotFused", "Replacement", "Report", "Row", "apply_default_kernels"]
__all__ += ["apply_fused_kernel", "apply_fused_kernels", "apply_kernel", "kernel"]
__all__ += ["remove_fused_kernels", "scan_all_kernels"]
