"""Qwen2, Qwen3, their MoE variants and others cannot be imported without paddlefleet, which needs CUDA.

Their modules define a provider for paddlefleet beside classes in plain Paddle, and import
``gpt_provider``, which raises ImportError. Where the import succeeds, ``Qwen3ForCausalLM`` is the class
that paddlefleet builds, and the plain one is called ``Qwen3ForCausalLMDeprecated``, so
``AutoModelForCausalLM`` does not find it. paddlefleet is not on PyPI.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/gpt_provider.py:32 `raise ImportError(`
:error: ImportError: paddlefleet is required for gpt_provider. ...
:should print:
    [1, 2, 32]
:change:
    Define the providers only if paddlefleet is there (``if is_paddlefleet_available()``), and without it
    let the plain classes have the names without "Deprecated".
:workaround:
    llm_npu.patches.paddleformers.without_cuda.supply_gpt_provider,
    llm_npu.patches.paddleformers.without_cuda.use_plain_classes
"""

import paddle
from paddleformers.transformers import Qwen3Config, Qwen3ForCausalLM

sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
config = Qwen3Config(**sizes, vocab_size=32, num_key_value_heads=2, head_dim=8, fuse_rms_norm=False)
print(Qwen3ForCausalLM(config)(paddle.to_tensor([[1, 2]]))[0].shape)
