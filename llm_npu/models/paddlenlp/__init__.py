"""PaddleNLP's models, in the Hugging Face layout on disk.

families        one file for each model family; FAMILIES and CONVERSIONS
presets         model names and directories -> the fields of a configuration
stock_config    config.json of transformers <-> PaddleNLP's configuration
checks          configurations that PaddleNLP's classes would compute wrongly, or this machine cannot hold
building        a hook that runs after a model is built
weights         a model's weights <-> model.safetensors
pretrained      a model with the weights of a directory, for inference
lora_classes, data_tools, tokenizers, training_arguments      PaddleNLP's, for the other rooms
internlm2       not a family but a conversion: InternLM2 checkpoints as Llama checkpoints, and back
"""
