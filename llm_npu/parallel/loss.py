"""PaddleNLP's model and its loss as one layer."""

from __future__ import annotations

import paddle

import paddle_fused


class CausalLoss(paddle.nn.Layer):
    """The mean loss of ``model`` (LlamaForCausalLM) in nats per label, without the logits as a whole.

    That is what PaddleNLP's criterion computes from logits; here the parts of a vocabulary that is split over
    processes stay where they are. Labels [B, S] of -100 do not count.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.loss(self.model.llama(input_ids)[0], labels)

    def loss(self, hidden, labels):
        """Of the last hidden states [B, S, H], behind the norm."""
        head = self.model.lm_head
        return paddle_fused.linear_cross_entropy(
            hidden, head.weight, labels, transpose_weight=bool(head.transpose_y)
        )
