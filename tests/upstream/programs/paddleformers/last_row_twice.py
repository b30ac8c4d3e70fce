"""Without packing, the last row of the data is read twice in each pass.

``_generate_sequences`` yields each row in its loop, and ``batch_sequence``, which still holds the last row,
again behind the loop. The data sets for SFT and DPO both do so, in training and evaluation.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/datasets/DPODataset.py:114 `yield batch_sequence`
    paddleformers/datasets/SFTDataset.py:440 `yield batch_sequence`
:prints:
    rows: [[0], [1], [2], [2]]
:should print:
    rows: [[0], [1], [2]]
:change: Remove the second ``yield batch_sequence`` of the branch without packing.
:workaround: llm_npu.patches.paddleformers.trainer.fix_last_row_of_evaluation
"""

import types

from paddleformers.datasets.DPODataset import IteratorDPODataset


class Rows(IteratorDPODataset):
    def __init__(self):
        self.mix_datasets, self.packing, self.is_valid = range(3), False, True

    def _postprocess_sequence(self, example):
        return types.SimpleNamespace(token_ids=[example])


print("rows:", [[sequence.token_ids[0] for sequence in row] for row in Rows()])
