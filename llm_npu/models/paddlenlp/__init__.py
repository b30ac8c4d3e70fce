"""What is PaddleNLP's own.

families                one file for each model family; FAMILIES, CONVERSIONS, and the classes of a family
internlm2               not a family but a conversion: InternLM2 checkpoints as Llama checkpoints, and back
gpt2                    GPT-2 checkpoints as GPT checkpoints, and back
adapter                 PaddleNLP for the other rooms: arguments, LoRA's classes, hooks
names                   names of fields and flags that differ between the libraries
tokenizers              PaddleNLP's classes for a tokenizer's files
"""
