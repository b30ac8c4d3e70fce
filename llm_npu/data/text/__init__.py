"""Text: corpora, conversations, chat templates, tokenizers."""
