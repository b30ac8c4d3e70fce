"""Evaluating a LoRA model fails without paddlefleet.

``Trainer.evaluation_loop`` compares the base of a LoRA model with paddlefleet's class ``GPTModel``, which its
module imports only with paddlefleet. ``and`` binds closer than ``or``, so the condition in front does not
protect the comparison.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/trainer/trainer.py:5028 `and isinstance(self.model, GPTModel)`
:prints:
    trained
:error: NameError: name 'GPTModel' is not defined
:should print:
    trained
    evaluated
:change:
    Put the two alternatives behind ``is_paddlefleet_available() and`` into parentheses.
:workaround: llm_npu.patches.paddleformers.without_cuda.supply_gpt_model_of_trainer
"""

import tempfile

import paddle
from paddleformers.peft import LoRAConfig, LoRAModel
from paddleformers.trainer import Trainer, TrainingArguments
from paddleformers.transformers import LlamaConfig, LlamaForCausalLM


class Rows(paddle.io.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": paddle.arange(4).numpy(), "labels": paddle.arange(4).numpy()}


options = {"device": "cpu", "amp_master_grad": False, "max_steps": 1, "save_strategy": "no"}
arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=1, **options)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, fuse_rms_norm=False)
model = LoRAModel(LlamaForCausalLM(config), LoRAConfig(target_modules=[".*q_proj.*"], r=2))
trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows())
trainer.train()
print("trained", flush=True)
trainer.evaluate()
print("evaluated", flush=True)
