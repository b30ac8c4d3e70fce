"""Text: where it comes from, conversations, chat templates, tokenizers."""
