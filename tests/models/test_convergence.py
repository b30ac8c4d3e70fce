"""Fused against unfused training on real text, step by step: losses, gradient norms, final parameters.

The text is the source of Python's standard library, which the training script learns by default, byte by
byte. How far the runs may part is measured, not chosen: see tests/shared/fused_models/training.py.
"""

import dataclasses
import itertools

import numpy as np
import pytest
from fused_models.comparison import Batch, built
from fused_models.families import BY_NAME
from fused_models.rounding import round_otherwise
from fused_models.training import assert_tracks, train

from llm_npu.data.text.corpus import standard_library

pytestmark = pytest.mark.slow

BYTES = 256
SEQUENCES, LENGTH = 4, 64
DISTURBED = range(5)
LONG, SHORT = 200, 25


def batches(steps: int) -> list[Batch]:
    """Consecutive text of the corpus, every byte a token."""
    count = SEQUENCES * (LENGTH + 1)
    stream = itertools.chain.from_iterable(text.encode() for text in standard_library().documents())
    made = []
    for _ in range(steps):
        tokens = np.fromiter(itertools.islice(stream, count), np.int64, count).reshape(SEQUENCES, -1)
        made.append(Batch(tokens[:, :-1], tokens[:, 1:]))
    return made


def family_for_bytes(name: str):
    family = BY_NAME[name]
    settings = {**family.settings, "vocab_size": BYTES, "max_position_embeddings": LENGTH}
    return dataclasses.replace(family, settings=settings)


def compare(name: str, steps: int) -> None:
    family, text = family_for_bytes(name), batches(steps)
    unfused = train(family, built(family), text)
    fused = train(family, built(family, "all"), text, "all")
    disturbed = []
    for seed in DISTURBED:
        model = built(family)
        round_otherwise(model, seed)
        disturbed.append(train(family, model, text))
    assert unfused.losses[-5:].mean() < unfused.losses[:5].mean() - 0.5  # it does learn
    assert_tracks(fused, unfused, disturbed, "float32")


def test_the_first_steps():
    compare("llama-gqa", SHORT)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-moe"])
def test_two_hundred_steps(name):
    compare(name, LONG)
