"""PaddleFormers' models, in the Hugging Face layout on disk.

families            the model families; FAMILIES, and the classes of a family
adapter             PaddleFormers for the other rooms: arguments, LoRA's classes, hooks, the DPO loss
names               names of fields and flags that differ between the libraries
tokenizers          PaddleFormers' classes for a tokenizer's files
"""
