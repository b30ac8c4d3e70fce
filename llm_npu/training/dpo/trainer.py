"""The trainer of ``--stage dpo``: PaddleFormers' loss on preference pairs.

PaddleFormers' own DPOTrainer computes the reference model in every step, and keeps it in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import paddle

from llm_npu.config import PreferenceArguments
from llm_npu.training.metrics import Baseline
from llm_npu.training.trainer import PretrainTrainer

LAYOUT = ("labels", "responses", "reference")  # what a batch has for the loss, not for the model


def logits_of(model, inputs: dict) -> paddle.Tensor:
    """[B, T, V] of a batch; families return them in different ways."""
    found = model(**{name: value for name, value in inputs.items() if name not in LAYOUT})
    return found[0] if isinstance(found, (tuple, list)) else getattr(found, "logits", found)


def answers(model, inputs: dict, criterion) -> tuple[paddle.Tensor, tuple]:
    """The logits of a batch of ``PairCollator``, and what ``criterion`` makes of them.

    Without ``reference`` in ``inputs`` that is the log-probabilities (chosen, rejected), float32 [pairs].
    """
    labels, responses, reference = (inputs.get(name) for name in LAYOUT)
    logits = logits_of(model, inputs)
    rows = logits.reshape([1, -1, logits.shape[-1]])  # the criterion counts labels over all rows
    known = (None, None) if reference is None else (reference[:, 0], reference[:, 1])
    with paddle.amp.auto_cast(False):  # sums of hundreds of log-probabilities need float32
        return logits, criterion(rows, (labels.reshape([1, -1]), np.array(responses), *known))


class DPOTrainer(PretrainTrainer):
    """Trains on pairs with PaddleFormers' ``criterion``: the mean loss over the pairs of a step.

    With l the log-probability of an answer by the policy, and l_ref by the reference, the reward of an answer
    is beta (l - l_ref). ``accuracies``: the share of pairs whose chosen answer has the higher reward;
    ``margins``: the mean difference. The names are those of PaddleFormers and TRL.
    """

    FIGURES = (
        "rewards/chosen",
        "rewards/rejected",
        "rewards/accuracies",
        "rewards/margins",
        "logps/chosen",
        "logps/rejected",
    )

    def __init__(self, *args, criterion: Callable, asked: PreferenceArguments, **kwargs):
        super().__init__(*args, **kwargs)
        self._pairs_criterion, self._asked = criterion, asked
        self._figures = np.zeros(len(self.FIGURES))

    def baseline(self) -> Baseline:
        """The loss of the reference, whose log-ratios are 0."""
        loss, formula = {
            "sigmoid": (math.log(2), "ln 2"),
            "hinge": (1.0, "1"),
            "ipo": (0.25 / self._asked.dpo_beta**2, "1 / (2 beta)^2"),
        }[self._asked.dpo_loss]
        return Baseline(loss, "the reference", formula, "mean over pairs")

    def batch_loss(self, model, inputs):
        if self._last_inputs is not None:  # for another forward pass
            self._last_inputs = {name: value for name, value in inputs.items() if name not in LAYOUT}
        if not inputs["responses"]:  # padding of an evaluation: other ranks have pairs
            self._figures = np.zeros(len(self.FIGURES))
            return paddle.full([], float("nan")), logits_of(model, inputs)
        logits, (chosen, rejected, _, _, loss) = answers(model, inputs, self._pairs_criterion)
        self._figures = self._measured(chosen, rejected, inputs["reference"])
        return loss, logits

    def batch_figures(self) -> np.ndarray:
        return self._figures

    def _measured(self, chosen, rejected, reference) -> np.ndarray:
        with paddle.no_grad():
            logps = paddle.stack([chosen, rejected], axis=1).astype("float32")
            values = paddle.concat([logps, reference], axis=1).numpy().astype(np.float64)
        logps, reference = values[:, :2], values[:, 2:]
        rewards = self._asked.dpo_beta * (logps - reference)
        margins = rewards[:, 0] - rewards[:, 1]
        return np.array([*rewards.mean(0), (margins > 0).mean(), margins.mean(), *logps.mean(0)])
