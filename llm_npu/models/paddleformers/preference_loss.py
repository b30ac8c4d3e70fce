"""PaddleFormers' criterion of preference pairs. Importing it imports paddleformers."""

from __future__ import annotations

import copy
from types import SimpleNamespace

from paddleformers.nn.criterion import CriterionLayer


def criterion(config, loss: str, beta: float, label_smoothing: float) -> CriterionLayer:
    """Its DPO loss for logits of a model of ``config``, which stays as it is.

    ``criterion(logits, (labels, responses, reference_chosen, reference_rejected))``, with logits [1, T, V],
    labels [1, T] (-100 outside of the answers) and int responses [pairs, 4] as in
    `llm_npu.data.collate.PairCollator`, returns the log-probabilities [pairs] of the chosen and the rejected
    answers, two parts of the loss, and the loss. Without reference it returns the log-probabilities only.
    """
    config = copy.copy(config)
    config.dpo_config = SimpleNamespace(
        loss_type=loss,
        beta=beta,
        label_smoothing=label_smoothing,
        pref_loss_ratio=1.0,
        sft_loss_ratio=0.0,
        offset_alpha=0.0,
        normalize_logps=False,
        ignore_eos_token=False,
    )
    config.use_filtered_label_loss = True  # float32 logits of the answers only
    config.use_fused_head_and_loss_fn = False
    config.loss_subbatch_sequence_length = -1
    return CriterionLayer(config, loss_type="dpo")
