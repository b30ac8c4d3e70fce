"""PaddleFormers' models, in the Hugging Face layout on disk.

families            the model families; FAMILIES, and the classes of a family
adapter             the interface to PaddleFormers: arguments, LoRA classes, hooks, the DPO loss
names               names of fields and flags that differ between the libraries
tokenizers          PaddleFormers' classes for a tokenizer's files
"""
