"""PaddleNLP's model and its loss as one layer."""

from __future__ import annotations

import paddle

import paddle_fused


class CausalLoss(paddle.nn.Layer):
    """The mean loss of ``model`` (LlamaForCausalLM) in nats per label, without materialising all logits.

    The result equals PaddleNLP's criterion on the logits, but the shards of a split vocabulary are not
    gathered. Labels [B, S] of -100 are ignored.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.loss(self.model.llama(input_ids)[0], labels)

    def loss(self, hidden, labels):
        """The loss of the last hidden states [B, S, H], after the final norm."""
        head = self.model.lm_head
        return paddle_fused.linear_cross_entropy(
            hidden, head.weight, labels, transpose_weight=bool(head.transpose_y)
        )
