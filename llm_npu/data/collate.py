"""Collates samples into a batch for a causal language model, padded or concatenated.

    collate = Collator("none")
    collate([{"input_ids": [5, 6, 7], "labels": [6, 7, -100]}, {"input_ids": [8, 9], "labels": [9, -100]}])

    input_ids       [[5, 6,    7, 8,    9]]
    labels          [[6, 7, -100, 9, -100]]
    position_ids    [[0, 1,    2, 0,    1]]
    attention_mask  masks.documents([[3, 2]])

``labels[t]`` is the token after ``input_ids[t]``, as PaddleNLP's criterion expects, so no label of a sample
comes from the next sample. Legend: B samples, T tokens per row of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_npu.core.errors import UserError
from paddle_fused import masks

from .packing import IGNORED

PADDINGS = ("none", "longest", "max_length")
MASKS = ("object", "dense", "rows")
ROWS = "attn_mask_startend_row_indices"


@dataclass(frozen=True)
class Collator:
    """Collates samples into a batch.

    A sample is {"input_ids": int [n], "labels": int [n]} with optional ``seqlens``, the lengths of documents
    that do not attend to each other. A batch has int64 ``input_ids`` and ``labels`` [B, T], or [1, T] without
    padding. If a row has more than one document, or a document and padding, the batch also has

        position_ids     int64 [B, T], from 0 in each document
        attention_mask   a ``masks.documents(...)`` in which padding is a separate document; with ``mask``
                         "dense", the same mask as bool [B, 1, T, T], **True = attended to**, for PaddleNLP's
                         own attention
        attn_mask_startend_row_indices
                         instead of attention_mask with ``mask`` "rows": int32 [B, 1, T, 1], the end of each
                         token's document, for PaddleFormers' attention

    Otherwise plain causal attention is equivalent. If samples have a ``loss_weight``, the batch has its sum
    and ``num_tokens``, the number of non-padding tokens; both are for the trainer, not for the model.

    Args:
        padding: "none": the samples are concatenated in one row. "longest": one row per sample, padded to
            the longest. "max_length": one row of ``length`` tokens per sample.
        pad_token_id: The value of ``input_ids`` in padding, where the labels are -100.
        mask: "rows" for models of PaddleFormers, "object" for models of PaddleNLP with fused attention,
            "dense" for other models of PaddleNLP.
        multiple: The number of tokens of a row is rounded up to a multiple of this number, by padding.
        cu_seqlens: Add ``cu_seqlens``, int32 [documents + 1], the cumulative lengths over all rows, starting
            at 0: for attention in layout TND.

    Raises:
        UserError: An argument is invalid, or a sample does not fit.
    """

    padding: str = "longest"
    length: int | None = None
    pad_token_id: int = 0
    mask: str = "object"
    multiple: int = 1
    cu_seqlens: bool = False

    def __post_init__(self):
        for name, accepted in (("padding", PADDINGS), ("mask", MASKS)):
            if getattr(self, name) not in accepted:
                raise UserError(f"{name} is {getattr(self, name)!r}; accepted: {', '.join(accepted)}")
        if (self.padding == "max_length") != (self.length is not None):
            raise UserError(
                f"length is {self.length} and padding {self.padding!r}; set length with 'max_length' only"
            )

    def __call__(self, samples: Sequence[Mapping]) -> dict:
        documents = [_documents(number, sample) for number, sample in enumerate(samples)]
        lengths = [sum(row) for row in documents]
        if self.padding == "none":
            documents = [[length for row in documents for length in row]]
            lengths = [sum(lengths)]
        if self.length is not None and max(lengths) > self.length:
            raise UserError(
                f"a sample has {max(lengths)} tokens, but length is {self.length}; truncate it first"
            )
        width = math.ceil((self.length or max(lengths)) / self.multiple) * self.multiple
        documents = [
            row + [width - length] * (length < width) for row, length in zip(documents, lengths, strict=True)
        ]
        batch = {
            "input_ids": self._joined(samples, "input_ids", width, self.pad_token_id),
            "labels": self._joined(samples, "labels", width, IGNORED),
        }
        if any(len(row) > 1 for row in documents):
            batch["position_ids"] = np.stack([np.concatenate([*map(np.arange, row)]) for row in documents])
            if self.mask == "rows":
                ends = [np.repeat(np.cumsum(row), row) for row in documents]
                batch[ROWS] = np.stack(ends).astype(np.int32)[:, None, :, None]
            else:
                mask = masks.documents(documents)
                batch["attention_mask"] = mask if self.mask == "object" else ~mask.to_dense(width)
        if self.cu_seqlens:
            ends = np.cumsum([length for row in documents for length in row])
            batch["cu_seqlens"] = np.concatenate([[0], ends]).astype(np.int32)
        if "loss_weight" in samples[0]:
            batch["loss_weight"] = sum(sample["loss_weight"] for sample in samples)
            batch["num_tokens"] = sum(lengths)
        return batch

    def _joined(self, samples: Sequence[Mapping], name: str, width: int, filler: int) -> np.ndarray:
        rows = [np.asarray(sample[name], dtype=np.int64) for sample in samples]
        if self.padding == "none":
            rows = [np.concatenate(rows)]
        return np.stack([np.pad(row, (0, width - len(row)), constant_values=filler) for row in rows])


def _documents(number: int, sample: Mapping) -> list[int]:
    tokens, labels = len(sample["input_ids"]), len(sample["labels"])
    seqlens = [int(length) for length in sample.get("seqlens", (tokens,))]
    if not tokens or labels != tokens or sum(seqlens) != tokens or min(seqlens) < 1:
        raise UserError(
            f"sample {number} has {tokens} input_ids, {labels} labels and documents of {seqlens} tokens; "
            "the numbers must be equal and at least one"
        )
    return seqlens


@dataclass(frozen=True)
class PairCollator:
    """Collates samples of `llm_npu.data.pairs.PairRows` into a batch; ``collator`` pads or joins them.

    One pair with a prompt of 3 tokens, a chosen answer of 3 and a rejected answer of 2, in a row of 8 tokens:

        input_ids                        p1 p2 p3 c1 c2 p3 r1  -
        labels                            -  - c1 c2 c3 r1 r2  -
        position_ids                      0  1  2  3  4  2  3  0
        attn_mask_startend_row_indices    7  7  5  5  5  7  7  8     the first later row that is masked
        responses                         [[0, 0, 3, 5]]

    The batch is ``collator``'s, always with ``position_ids`` [B, T] and row indices [B, 1, T, 1], plus

        responses   a list [0, start of the chosen answer, its end, end of the rejected answer] for each pair,
                    as positions among the batch's labels that are not -100, for PaddleFormers' criterion
        reference   float32 [pairs, 2], if samples have it

    Pairs of a sample without labels (padding of ``FirstSamples``) are not in ``responses``.
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
            logps = [sample["reference"] for sample in counted]
            batch["reference"] = np.concatenate([np.zeros((0, 2), np.float32), *logps])
        return batch


def _positions(sizes: np.ndarray, width: int) -> np.ndarray:
    """Positions in a row of pairs, int64 [width]; padding starts at 0."""
    positions = []
    for prompt, chosen, rejected in sizes:
        positions += [np.arange(prompt + chosen - 1), np.arange(prompt - 1, prompt - 1 + rejected)]
    positions.append(np.arange(width - sum(map(len, positions))))
    return np.concatenate(positions)


def _ends(sizes: np.ndarray, width: int) -> np.ndarray:
    """The first later row that does not attend to the token, int64 [width].

    Each answer has its own copy of the prompt's last token; the other answer does not attend to it.
    """
    ends, start = [], 0
    for prompt, chosen, rejected in sizes:
        end = start + prompt + chosen + rejected - 1
        ends.append(np.repeat([end, start + prompt - 1 + chosen, end], [prompt - 1, chosen, rejected]))
        start = end
    return np.concatenate([*ends, np.full(width - start, width)])


def _responses(sizes: Sequence[np.ndarray]) -> list[list[int]]:
    responses, start = [], 0
    for _, chosen, rejected in (pair for row in sizes for pair in row.tolist()):
        responses.append([0, start, start + chosen, start + chosen + rejected])
        start += chosen + rejected
    return responses
