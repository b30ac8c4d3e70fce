"""DPO with a reference model fails on one rank.

``_wrap_ref_model`` always calls ``fleet.distributed_model``. In one process nothing has initialised fleet:
``TrainingArguments`` does so only for several ranks.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/cli/train/dpo/dpo_trainer.py:225 `model = fleet.distributed_model(model)`
:error: AttributeError: 'Fleet' object has no attribute '_user_defined_strategy'
:should print:
    ready
:change: Call ``fleet.distributed_model`` only if ``self.args.world_size`` is above 1.
:workaround: none
"""

import tempfile

from paddleformers.cli.train.dpo.dpo_argument import DPOConfig
from paddleformers.cli.train.dpo.dpo_trainer import DPOTrainer
from paddleformers.trainer import TrainingArguments
from paddleformers.transformers import LlamaConfig, LlamaForCausalLM

arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), device="cpu", amp_master_grad=False)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, fuse_rms_norm=False)
model, reference = LlamaForCausalLM(config), LlamaForCausalLM(config)
DPOTrainer(model, None, ref_model=reference, dpo_config=DPOConfig(), args=arguments)
print("ready")
