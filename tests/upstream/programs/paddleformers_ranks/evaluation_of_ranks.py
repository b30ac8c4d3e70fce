"""With data parallelism, ``eval_loss`` is the mean over a part of the evaluation data.

Two ranks evaluate the rows 0 to 7, whose loss is their number. ``evaluation_loop`` gathers the losses of
both, and truncates them to the length of ``IterableDatasetShard``, which is the number of one rank's rows.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/trainer/trainer.py:5171 `num_samples = len(eval_dataset)`
:prints:
    eval_loss: 1.5
:should print:
    eval_loss: 3.5
:change: Ask for ``eval_dataset.num_examples`` of an ``IterableDatasetShard`` before ``len(eval_dataset)``.
:workaround: llm_npu.patches.paddleformers.trainer.fix_evaluation_of_ranks
"""

import tempfile

import numpy as np
import paddle
from paddleformers.trainer import Trainer, TrainingArguments
from paddleformers.transformers import LlamaConfig, LlamaForCausalLM


class Rows(paddle.io.IterableDataset):
    def __len__(self):
        return 8

    def __iter__(self):
        return iter({"input_ids": np.full(4, row), "labels": np.full(4, row)} for row in range(8))


class NumberAsLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        loss = inputs["labels"].astype("float32").mean()
        return (loss, (loss,)) if return_outputs else loss


options = {"device": "npu", "amp_master_grad": False, "sharding": "", "prediction_loss_only": True}
arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_eval_batch_size=1, **options)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, fuse_rms_norm=False))
trainer = NumberAsLoss(model=model, args=arguments, eval_dataset=Rows())
print("eval_loss:", trainer.evaluate()["eval_loss"])
