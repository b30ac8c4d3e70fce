"""The pipelines of all families but GPT ignore ``config.use_dualpipev``.

PaddleNLP's Trainer accepts ``use_dualpipev`` in ``pipeline_parallel_config``, but ``LlamaForCausalLMPipe``
and others do not pass it to ``PipelineLayer``. Their layers are placed for 1F1B, and the first step fails
("chunk_id is only valid when using virtual pipeline stage"). In V shape, a tied embedding would also need
``LocalSharedLayerDesc``, and the layers and the loss a tensor instead of a list of one.

:versions: paddlenlp 3.0.0b4 with paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddlenlp/transformers/llama/modeling_pp.py:458 `num_virtual_pipeline_stages=virtual_pp_degree,`
:prints:
    in V shape: False
:should print:
    in V shape: True
:change: As in ``GPTForCausalLMPipe``: pass ``use_dualpipev`` on, and choose the class of shared layers by it.
:workaround: llm_npu.patches.dualpipev.fix_models_of_one_tensor
"""

from paddle.distributed import fleet
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLMPipe

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"pp_degree": 2, "pp_configs": {"use_dualpipev": True}}
fleet.init(is_collective=True, strategy=strategy)
sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
config = LlamaConfig(**sizes, num_hidden_layers=4, tie_word_embeddings=True)
config.use_dualpipev = True
model = LlamaForCausalLMPipe(config)
parts = [len(chunk.run_function) for chunk in getattr(model, "_model_chunks", [])]
of_stages = [[2, 3], [1, 1]]  # embedding, layer and layer, norm, head; a layer and a layer
print("in V shape:", parts == of_stages[fleet.get_hybrid_communicate_group().get_stage_id()])
