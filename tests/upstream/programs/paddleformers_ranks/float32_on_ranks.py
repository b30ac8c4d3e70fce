"""Training in float32 with tensor, pipeline or sharding parallelism fails before its first step.

``_wrap_distributed_optimizer`` patches the clipping of ``self.optimizer``, which at that moment is not
the distributed optimizer yet. In bfloat16 with master gradients ``MixPrecisionOptimizer`` happens to
have the attribute.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/trainer/trainer.py:3638 `self.optimizer._inner_opt._grad_clip._global_norm = types`
:error: AttributeError: 'AdamW' object has no attribute '_inner_opt'
:should print:
    trained
:change: ``dist_optimizer._inner_opt._grad_clip._global_norm``, whose method the lines before wrap.
:workaround: llm_npu.patches.paddleformers.trainer.fix_gradient_clipping_in_float32
"""

import tempfile

import paddle
from paddleformers.trainer import Trainer, TrainingArguments
from paddleformers.transformers import LlamaConfig, LlamaForCausalLM


class Rows(paddle.io.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": paddle.arange(4).numpy(), "labels": paddle.arange(4).numpy()}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    device="npu",
    tensor_model_parallel_size=2,
    amp_master_grad=False,
    max_steps=1,
)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, fuse_rms_norm=False)
config._attn_implementation = "eager"
config.tensor_model_parallel_size, config.tensor_parallel_rank = 2, arguments.tensor_parallel_rank
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Rows()).train()
print("trained")
