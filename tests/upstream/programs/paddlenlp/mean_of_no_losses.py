"""The loss of Mistral, Mixtral, Gemma and GPT is NaN where no label has a loss above 0.

The criteria average the losses above 0. A batch has none if all its labels are ignored, or if all are learnt
so well that float32 rounds their losses to 0, as a fine-tuning on few samples reaches. Llama's and Qwen2's
criteria return 0.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/mistral/modeling.py:836 `loss = paddle.mean(masked_lm_loss)`
    paddlenlp/transformers/mixtral/modeling.py:1320 `loss = paddle.mean(masked_lm_loss)`
    paddlenlp/transformers/gemma/modeling.py:1367 `loss = paddle.mean(masked_lm_loss)`
    paddlenlp/transformers/gpt/modeling.py:1360 `loss = masked_lm_loss / loss_mask.sum()`
:prints:
    mistral nan nan
    mixtral nan nan
    gemma nan nan
    gpt nan nan
:should print:
    mistral 0.0 0.0
    mixtral 0.0 0.0
    gemma 0.0 0.0
    gpt 0.0 0.0
:change: the condition on the count that Qwen2's criterion has.
:workaround: llm_npu.patches.layers.fix_means_of_no_losses
"""

import importlib

import paddle
from paddlenlp import transformers

logits = paddle.to_tensor([[[0.0, 0.0], [50.0, 0.0]]])  # the second token is certain
for name, title in (("mistral", "Mistral"), ("mixtral", "Mixtral"), ("gemma", "Gemma"), ("gpt", "GPT")):
    modeling = importlib.import_module(f"paddlenlp.transformers.{name}.modeling")
    more = {"ignore_index": -100} if name == "gpt" else {}
    config = getattr(transformers, f"{title}Config")(vocab_size=2, **more)
    criterion = getattr(modeling, f"{title}PretrainingCriterion")(config)
    batches = [[-100, -100]], [[-100, 0]]
    print(name, *(float(criterion(logits, paddle.to_tensor(labels))) for labels in batches))
