"""PaddleFormers' models, in the Hugging Face layout on disk."""
