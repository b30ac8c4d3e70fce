"""What is PaddleNLP's own.

families                one file for each model family; FAMILIES, CONVERSIONS, and the classes of a family
internlm2               not a family but a conversion: InternLM2 checkpoints as Llama checkpoints, and back
gpt2                    GPT-2 checkpoints as GPT checkpoints, and back
building                a hook that runs after a model is built
names                   names of fields and flags that differ between the libraries
training_arguments      PaddleNLP's TrainingArguments, and what it passes on to a model's configuration
lora_classes, data_tools, tokenizers        PaddleNLP's, for the other rooms
"""
