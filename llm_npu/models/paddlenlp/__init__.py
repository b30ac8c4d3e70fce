"""PaddleNLP's models, in the Hugging Face layout on disk.

families                a record for each model family; FAMILIES, CONVERSIONS, and the classes of a family
internlm2               converts InternLM2 checkpoints to Llama checkpoints, and back
gpt2                    converts GPT-2 checkpoints to GPT checkpoints, and back
adapter                 the interface to PaddleNLP: arguments, LoRA classes, hooks
names                   names of fields and flags that differ between the libraries
tokenizers              PaddleNLP's classes for a tokenizer's files
"""
