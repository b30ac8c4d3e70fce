"""In a pipeline the last norm has weight decay; in one process it has none.

``create_optimizer`` knows norms by "norm" in the names of parameters. In stages these are the names of
``PipelineLayer``: "1.input_layernorm.weight" in a decoder layer, but "3.weight" for the last norm.

:versions: paddleformers 1.2.0
:device: npu, 2 processes
:at:
    paddleformers/trainer/trainer.py:3342 `if not p.stop_gradient and not any(nd in n for nd in ["bias"`
:prints:
    norms with weight decay: 1
:should print:
    norms with weight decay: 0
:change:
    Read the names of a single process, ``model._pp_to_single_mapping``, or find norms by their classes.
:workaround: llm_npu/training/upstream_trainer.py
"""

import tempfile

import paddle
import paddle.distributed as dist
from paddleformers.nn.norm import RMSNorm
from paddleformers.trainer import Trainer, TrainingArguments
from paddleformers.transformers import LlamaConfig
from paddleformers.transformers.llama.modeling import LlamaForCausalLMPipe

arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), device="npu", pipeline_model_parallel_size=2, amp_master_grad=False
)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 32}
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False)
model = LlamaForCausalLMPipe(config)
optimizer = Trainer(model=model, args=arguments).create_optimizer(lr_scheduler=0.1)
norms = [layer for layer in model.sublayers() if isinstance(layer, RMSNorm)]
decays = [optimizer._apply_decay_param_fun(norm.weight.name) for norm in norms]
count = paddle.to_tensor(float(sum(decays)))
dist.all_reduce(count)
print("norms with weight decay:", int(count))
