"""Samples of preference pairs -> the arguments of a causal language model, and of the loss on pairs.

One pair with a prompt of 3 tokens, a chosen answer of 3 and a rejected one of 2, in a row of 8 tokens:

    input_ids                        p1 p2 p3 c1 c2 p3 r1  -
    labels                            -  - c1 c2 c3 r1 r2  -
    position_ids                      0  1  2  3  4  2  3  0
    attn_mask_startend_row_indices    7  7  5  5  5  7  7  8     the first later row that does not see it
    responses                         [[0, 0, 3, 5]]

Legend: B rows, T tokens per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .collate import ROWS, Collator
from .rows import IGNORED


@dataclass(frozen=True)
class PairCollator:
    """Collates samples of `llm_npu.data.pairs.PairRows` into a batch; ``collator`` pads or joins them.

    The batch is that of ``collator``, always with ``position_ids`` [B, T] and row indices [B, 1, T, 1], and

        responses   of each pair 0, and where its chosen answer begins and ends and its rejected one ends
                    among the labels of the batch that are not -100, which is what PaddleFormers' criterion
                    takes: lists of four int
        reference   float32 [pairs, 2], if samples carry it

    A sample without labels (``FirstSamples``) has no pairs in them.
    """

    collator: Collator

    def __call__(self, samples: Sequence[Mapping]) -> dict:
        batch = self.collator(samples)
        width = batch["input_ids"].shape[1]
        rows = [samples] if self.collator.padding == "none" else [[sample] for sample in samples]
        sizes = [np.concatenate([sample["pairs"] for sample in row]) for row in rows]
        batch["position_ids"] = np.stack([_positions(row, width) for row in sizes])
        batch[ROWS] = np.stack([_ends(row, width) for row in sizes]).astype(np.int32)[:, None, :, None]
        counted = [sample for sample in samples if (sample["labels"] != IGNORED).any()]
        batch["responses"] = _responses([sample["pairs"] for sample in counted])
        if "reference" in samples[0]:
            found = [sample["reference"] for sample in counted]
            batch["reference"] = np.concatenate([np.zeros((0, 2), np.float32), *found])
        return batch


def _positions(sizes: np.ndarray, width: int) -> np.ndarray:
    """int64 [width] of a row of pairs; padding begins at 0."""
    found = []
    for prompt, chosen, rejected in sizes:
        found += [np.arange(prompt + chosen - 1), np.arange(prompt - 1, prompt - 1 + rejected)]
    found.append(np.arange(width - sum(map(len, found))))
    return np.concatenate(found)


def _ends(sizes: np.ndarray, width: int) -> np.ndarray:
    """The first later row that does not see the token, int64 [width].

    The last token of the prompt stands before each answer, and belongs to it: the rejected answer sees its
    own only.
    """
    found, start = [], 0
    for prompt, chosen, rejected in sizes:
        end = start + prompt + chosen + rejected - 1
        found.append(np.repeat([end, start + prompt - 1 + chosen, end], [prompt - 1, chosen, rejected]))
        start = end
    return np.concatenate([*found, np.full(width - start, width)])


def _responses(sizes: Sequence[np.ndarray]) -> list[list[int]]:
    found, start = [], 0
    for _, chosen, rejected in (pair for each in sizes for pair in each.tolist()):
        found.append([0, start, start + chosen, start + chosen + rejected])
        start += chosen + rejected
    return found
