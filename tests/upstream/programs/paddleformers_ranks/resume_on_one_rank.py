"""A checkpoint in flex_checkpoint, the default format, cannot be resumed on one rank.

``_load_flex_checkpoint`` always asks fleet for its groups. In one process nothing has initialised fleet:
``TrainingArguments`` does so only for several ranks. The checkpoint is written without an error.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/trainer/trainer.py:1146 `hcg = dist.fleet.get_hybrid_communicate_group()`
:prints:
    trained
:error: AttributeError: 'Fleet' object has no attribute '_hcg'
:should print:
    trained
    resumed
:change:
    Ask for the groups only where ``flex_ckpt_comm_method`` is "parallel_broadcast", the one that uses them.
:workaround: llm_npu.patches.paddleformers.checkpoints.fix_resume_on_one_rank
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


folder = tempfile.mkdtemp()
options = {"device": "cpu", "amp_master_grad": False, "max_steps": 2, "save_steps": 1}
arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=1, **options)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, fuse_rms_norm=False)
for checkpoint, done in ((None, "trained"), (f"{folder}/checkpoint-1", "resumed")):
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Rows())
    trainer.train(resume_from_checkpoint=checkpoint)
    print(done, flush=True)
