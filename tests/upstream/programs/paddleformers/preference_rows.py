"""In DPO with row indices, the default, the rejected answer sees the last token of the prompt twice.

A pair is one row: the prompt, the chosen answer, the last token of the prompt again, the rejected answer.
The dense mask hides the prompt's last token from the rejected answer, which has a copy of its own. The row
indices of that token end at the end of the pair, so the rejected answer attends to both; its
log-probabilities, and so the loss and the rewards, are those of another prompt.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/datasets/DPODataset.py:446 `[cur_len] * prompt_len`
:prints:
    row indices: the rejected answer's first token sees [10, 11, 12, 12]
    dense mask: the rejected answer's first token sees [10, 11, 12]
:should print:
    row indices: the rejected answer's first token sees [10, 11, 12]
    dense mask: the rejected answer's first token sees [10, 11, 12]
:change:
    ``[cur_len] * (prompt_len - 1)``, and then ``[prompt_len + chosen_len - 1] * chosen_len``.
:workaround: llm_npu/data/collate.py
"""

import numpy as np
from paddleformers.datasets.DPODataset import BaseDPODataSet

PROMPT, CHOSEN, REJECTED = [10, 11, 12], [20, 21], [30, 31]


class Tokenizer:
    chat_template, eos_token_id = "any", 2

    def encode_chat_inputs(self, conversation):
        answer = CHOSEN if conversation["messages"][-1]["content"] == "chosen" else REJECTED
        return [[PROMPT[:], answer[:]]]


dataset = BaseDPODataSet.__new__(BaseDPODataSet)
dataset.tokenizer, dataset.template_backend, dataset.max_seq_len = Tokenizer(), "jinja", 64
dataset.split_multi_turn, dataset.efficient_eos, dataset.use_filtered_label_loss = False, True, False
for name, with_rows in (("row indices", True), ("dense mask", False)):
    dataset.use_attn_mask_startend_row_indices = with_rows
    pair = dataset._postprocess_sequence(
        {
            "messages": [{"role": "user", "content": "question"}],
            "chosen_response": [{"role": "assistant", "content": "chosen"}],
            "rejected_response": [{"role": "assistant", "content": "rejected"}],
        }
    )
    ids = np.array(pair.token_ids)
    token = len(PROMPT) + len(CHOSEN)  # the copy of the prompt's last token, which predicts the answer
    if with_rows:
        seen = (np.arange(len(ids)) <= token) & (token < np.array(pair.attn_mask_startend_row_indices))
    else:
        seen = pair.attention_mask[token]
    print(f"{name}: the rejected answer's first token sees {ids[seen].tolist()}")
