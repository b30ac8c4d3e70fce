"""Stops a run at operators that fail silently: CANN rejects the call, or the result is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import paddle_fused
from llm_npu.core.errors import ErrorOfAllRanks, UserError
from llm_npu.core.ranks import Ranks
from llm_npu.training.upstream_trainer import TrainerCallback
from paddle_fused import registry


class AclErrorCheck(TrainerCallback):
    """Detects operators that CANN rejects, from the first batch to the end of the training.

    Individual operators are checked in every ``every``-th step, in steps with new batch shapes, and in
    evaluations. In the other steps, the end of each backward pass and of the step is checked.
    """

    def __init__(self, every: int, say: Callable[[str], None]):
        self._every, self._say = every, say
        self._watch: paddle_fused.AclErrorWatch | None = None
        self._shapes: set[tuple] = set()
        self._step = 0

    def around(self, train: Callable) -> Callable:
        """Wrap ``train`` to raise UserError with the step and the operator."""

        @functools.wraps(train)
        def watched(*args, **kwargs):
            with paddle_fused.watch_acl_errors(self._report) as self._watch:
                try:
                    return train(*args, **kwargs)
                except Exception as error:
                    refusal = self._watch.error
                    if refusal is None:
                        raise
                    raise UserError(f"step {self._step}: {refusal}") from (refusal.__cause__ or error)

        return watched

    def _report(self, text: str) -> None:
        self._say(f"acl      {text}")

    def on_load_data_end(self, args, state, control, inputs=None, **kwargs):
        self._step = state.global_step + 1
        shapes = shapes_of(inputs)
        if self._step % self._every == 0 or shapes not in self._shapes:
            self._shapes.add(shapes)
            self._watch.watch_operators(True)

    def on_step_end(self, args, state, control, **kwargs):
        self._watch.check()
        self._watch.watch_operators(control.should_evaluate or self._every == 1)

    def on_evaluate(self, args, state, control, **kwargs):
        self._watch.check("an operator of the evaluation")
        self._watch.watch_operators(self._every == 1)


def shapes_of(inputs: object) -> tuple:
    """The names and shapes of a batch's tensors."""
    if isinstance(inputs, Mapping):
        return tuple((name, tuple(getattr(value, "shape", ()))) for name, value in inputs.items())
    return tuple(map(shapes_of, inputs)) if isinstance(inputs, list | tuple) else ()


class OperatorVerification(TrainerCallback):
    """Compares the fused operators of the first step with their definitions (``paddle_fused.verification``).

    Raises UserError on all ranks after the step, before a checkpoint is written, if any rank differs.
    """

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._open = ExitStack()
        self._verification: paddle_fused.Verification | None = None
        self._is_done = False

    def on_step_begin(self, args, state, control, **kwargs):
        if not self._is_done:
            self._is_done = True
            self._verification = self._open.enter_context(paddle_fused.verify_operators())

    def on_step_end(self, args, state, control, **kwargs):
        if self._verification is None:
            return
        self._open.close()
        verification, self._verification = self._verification, None
        own = list(map(str, verification.mismatches)), hint(verification)
        for rank, (mismatches, switches) in enumerate(Ranks.of_run().gather(own)):
            if mismatches:
                where = f"rank {rank}: " if Ranks.of_run().size > 1 else ""
                more = f"; {len(mismatches) - 1} more calls differ" if len(mismatches) > 1 else ""
                raise ErrorOfAllRanks(f"{where}{mismatches[0]}{more}. {switches}")
        self._report(verification)

    def _report(self, verification: paddle_fused.Verification) -> None:
        if not Ranks.of_run().first:
            return
        skipped = [verdict for verdict in verification.verdicts if verdict.skipped]
        count, seconds = len(verification.verdicts) - len(skipped), verification.seconds
        self._say(f"verify   {count} calls of fused operators match their definitions ({seconds:.1f} s)")
        for verdict in skipped:
            self._say(f"         {verdict}")


def hint(verification: paddle_fused.Verification) -> str:
    """How to train without the operators that differ."""
    names = dict.fromkeys(verdict.operator for verdict in verification.mismatches)
    switches = [registry.find(name).switch for name in names if name in registry.operators()]
    flags = " ".join(f"--{switch} false" for switch in dict.fromkeys(filter(None, switches)))
    alternative = f"Train without it ({flags}), or report" if flags else "Report"
    return f"{alternative} the operator with the versions of CANN and of paddle-custom-npu."
