"""Models, one folder for each library of models. Importing it imports no framework.

library         the installed library, and the modules of its folder
other_library   families that only the other library has
family          a model family as one record
layout          where each parameter, fused or sharded, lies in the tensors of the Hugging Face layout
stored          the arrays of safetensors files, read on access
lora            LoRA: wrapped, saved, merged
flops           the floating-point operations of a token
"""
