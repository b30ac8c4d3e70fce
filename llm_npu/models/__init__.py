"""Models, one folder for each library of models. Importing it imports no framework.

library         the installed library, and the modules of its folder
other_library   families that only the other library has
family          a model family as one record
families        the records of the installed library, and new models
presets         model names and directories -> the fields of a configuration
degrees         over how many processes a configuration splits its model
checks          configurations that the library's classes would compute wrongly, or this machine cannot hold
upstream_config    config.json of transformers <-> the library's configuration
layout          where each parameter, fused or sharded, lies in the tensors of the Hugging Face layout
stored          the arrays of safetensors files, read on access
weights         a model's weights <-> model.safetensors
pretrained      a model with the weights of a directory, for inference
lora            LoRA: wrapped, saved, merged
flops           the floating-point operations of a token
"""
