"""Converts text, conversations or .bin + .idx files to batches.

pipeline    files -> the samples of a run: find, tokenizer, encode, split, pack, order
packing     token streams and whole sequences -> samples
collate     samples -> a batch
indexed     .bin + .idx files of token ids
answers     encodes the conversations of stage sft
pairs       encodes the preference pairs of stage dpo
text        text files, records, tokenizers, chat templates
"""
