"""PaddleFormers' models, in the Hugging Face layout on disk.

families            one file for each model family; FAMILIES, and the classes of a family
building            a hook that runs after a model is built
"""
