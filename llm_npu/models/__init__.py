"""Models, with one folder for each model library. Importing it imports no framework.

library         the installed library, and the modules of its folder
other_library   families that exist only in the other library
family          a model family as one record
families        the records of the installed library, and new models
presets         model names and directories -> the fields of a configuration
degrees         tensor and pipeline parallel degrees of a configuration
checks          rejects configurations that are wrong, unsupported or too large
upstream_config    config.json of transformers <-> the library's configuration
layout          maps parameters, fused or sharded, to tensors of the Hugging Face layout
stored          the arrays of safetensors files, read on access
weights         a model's weights <-> model.safetensors
pretrained      a model with the weights of a directory, for inference
lora            LoRA: wrapped, saved, merged
flops           FLOPs per token
"""
