"""Text, jsonl or .bin + .idx -> packed samples of fixed length.

    data = load(run.data, tokenizer, vocab_size=config.vocab_size, positions=config.max_position_embeddings)
    train = data.train.shuffled(num_samples=max_steps * global_batch, seed=run.training.seed)
    train[i] -> {"input_ids": int64 [T], "labels": int64 [T]}    labels[t] == token after input_ids[t]

``train[i]`` is a pure function of the seed and i: a sampler that walks i = 0, 1, 2, ... without shuffling
(PaddleNLP's DistributedBatchSampler with ``shuffle=False``) and starts at the number of consumed samples sees
the same batches as a run that was never interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Datasets:
    """The three parts of the data, each a ``PackedSamples``; a part may be empty (length 0)."""

    train: "PackedSamples"  # noqa: F821
    valid: "PackedSamples"  # noqa: F821
    test: "PackedSamples"  # noqa: F821


def load(data, tokenizer, vocab_size: int, positions: int, need_valid: bool = True, need_test: bool = False):
    """The parts of the text that DataArguments ``data`` names, tokenised, memory-mapped and cut into samples.

    ValueError for input that is missing, empty, unreadable or corrupt, for token ids of ``vocab_size`` or more,
    for samples longer than ``positions``, and for a needed part with too few tokens for one sample.
    """
    raise NotImplementedError
