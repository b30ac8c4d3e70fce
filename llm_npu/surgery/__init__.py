"""Patches fused operators into models of PaddleNLP and PaddleFormers without changing their code.

    report = apply_fused_kernels(model)      # model: LlamaForCausalLM, Qwen2ForCausalLM, ...
    print(report)                            # for each layer: fused, or the reason why not
    remove_fused_kernels(model)

Only stateless computation is replaced, on the layer instances of this model. Parameters, names, sharding
annotations, state_dict and pickles are unchanged. ``paddle_fused`` chooses the backend of each call from its
tensors. The modules:

    apply           apply_fused_kernels and remove_fused_kernels
    registry        the registered kernels, one file in replacements/ per kernel
    replacements    the changes per kernel: attention, rms_norm, add_rms_norm, rotary, swiglu, moe, ...
    fusable_layers  which layers compute an operator, from the families' records
    swap            installs replacements on layer instances, and removes them
    decoder_mask    the decoder's attention mask as a mask object
    residual_sums   fuses the residual sums of a decoder layer with the norms that read them
    attention_interface  PaddleFormers' attention functions and masks
    multimodal_rotary  rotary embeddings of vision-language models
    vision          what vision towers compute once per batch: masks, positions, image tokens
    moe             feed-forward layers of MoE models, and PaddleFormers' sparse blocks
    report          each layer and operator, fused or not, with the reason
    explain         the backend of each layer's operators before the first step
    batch           input sizes without values, for explain
    names           many layer paths as a short text
    compat          the interfaces of LLaMA-Factory (apply_kernel, ...) and openMind (apply_fused_kernel)
"""

from .apply import apply_fused_kernels, remove_fused_kernels
from .compat import apply_default_kernels, apply_fused_kernel, apply_kernel, scan_all_kernels
from .registry import Kernel, NotFused, Replacement, kernel
from .report import Report, Row

__all__ = ["Kernel", "NotFused", "Replacement", "Report", "Row", "apply_default_kernels"]
__all__ += ["apply_fused_kernel", "apply_fused_kernels", "apply_kernel", "kernel"]
__all__ += ["remove_fused_kernels", "scan_all_kernels"]
