"""A training step of a model whose loss is computed from hidden states, without logits."""

from __future__ import annotations

import numpy as np
import paddle

from fused_models.comparison import IGNORED, array, assert_as_accurate, built, random_batch, truth, unfused
from llm_npu.surgery import apply_fused_kernels

OPERATOR = "linear_cross_entropy"


def step(model, batch) -> dict:
    """``comparison.results`` of a training step; the logits are those of a call without labels."""
    model.train()
    ids, labels = paddle.to_tensor(batch.ids), paddle.to_tensor(batch.labels)
    more = {} if batch.mask is None else {"attention_mask": paddle.to_tensor(batch.mask)}
    returned = model(input_ids=ids, labels=labels, **more)
    loss = returned[0]
    # ERNIE's has its loss twice
    tensors = [output for output in returned[1:] if isinstance(output, paddle.Tensor)]
    assert not any(tensor.shape for tensor in tensors)
    loss.backward()
    outputs = model(input_ids=ids, **more)
    logits = outputs if isinstance(outputs, paddle.Tensor) else outputs[0]
    results = {"loss": array(loss), "logits": array(logits)[batch.labels != IGNORED]}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        results[name] = np.zeros(parameter.shape) if gradient is None else array(gradient)
    model.clear_gradients()
    model.eval()
    return results


def check(family, device: str, dtype: str, padded: bool = False, **config) -> None:
    """Loss and gradients as near to float64 as those of the unfused model, and logits where they are read.

    ``config``: fields of the fused model only.
    """
    composed = unfused(family, device, dtype, padded=padded)
    exact = truth(family.truth, padded=padded)
    model = built(family, dtype=dtype, **config)
    report = apply_fused_kernels(model, [OPERATOR])
    assert report.count(OPERATOR) == 1 and not report.count(fused=False)
    assert_as_accurate(step(model, random_batch(padded)), composed, exact, dtype)
