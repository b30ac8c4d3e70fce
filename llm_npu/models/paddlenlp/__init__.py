"""PaddleNLP's models, in the Hugging Face layout on disk.

families        one file for each model family; FAMILIES and CONVERSIONS
presets         model names and directories -> the fields of a configuration
stock_config    config.json of transformers <-> PaddleNLP's configuration
checks          configurations that PaddleNLP's classes would compute wrongly, or this machine cannot hold
building        a hook that runs after a model is built
layout          where each parameter, fused or sharded, lies in the tensors of the Hugging Face layout
stored          the arrays of safetensors files, read on access
weights         a model's weights <-> model.safetensors
pretrained      a model with the weights of a directory, for inference
lora            PaddleNLP's LoRA: wrapped, saved, merged
internlm2       not a family but a conversion: InternLM2 checkpoints as Llama checkpoints, and back
"""
