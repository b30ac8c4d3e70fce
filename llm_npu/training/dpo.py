"""Stage dpo: direct preference optimization (Rafailov et al., arXiv 2305.18290) of PaddleFormers models.

The reference is the model that training starts from. The log-probabilities of all answers under the reference
are computed before the first step and cached, so only one model is in memory; PaddleFormers' own DPOTrainer
keeps a reference model in memory and runs it in every step. The name of the cache folder is a hash of
everything that the log-probabilities depend on (`fingerprint`). A resumed run, or another run with the same
model and data, reads them from the cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import paddle

from llm_npu.config import PreferenceArguments, RunConfig
from llm_npu.core import ranks
from llm_npu.core.cache import cache_folder, cached, mapped_arrays
from llm_npu.core.console import say
from llm_npu.core.errors import UserError
from llm_npu.core.ranks import Ranks
from llm_npu.core.untrusted import plain_json
from llm_npu.data.pairs import PairRows
from llm_npu.data.text import chat_template
from llm_npu.data.text.corpus import Corpus
from llm_npu.data.text.tokenizer import fingerprint as tokenizer_fingerprint
from llm_npu.models import lora, weights
from llm_npu.training import model as run_model
from llm_npu.training.metrics import Baseline
from llm_npu.training.run import Feature, Run
from llm_npu.training.trainer import PretrainTrainer
from paddle_fused import strict_json

LAYOUT = ("labels", "responses", "reference")  # batch keys for the loss, not for the model
RECORD = "reference.json"


def logits_of(model, inputs: dict) -> paddle.Tensor:
    """The logits [B, T, V] of a batch; model families return them in different ways."""
    outputs = model(**{name: value for name, value in inputs.items() if name not in LAYOUT})
    return outputs[0] if isinstance(outputs, (tuple, list)) else getattr(outputs, "logits", outputs)


def logits_and_criterion(model, inputs: dict, criterion) -> tuple[paddle.Tensor, tuple]:
    """The logits of a ``PairCollator`` batch, and the outputs of ``criterion``.

    Without ``reference`` in ``inputs``, the outputs are log-probabilities (chosen, rejected), float32
    [pairs].
    """
    labels, responses, reference = (inputs.get(name) for name in LAYOUT)
    logits = logits_of(model, inputs)
    rows = logits.reshape([1, -1, logits.shape[-1]])  # the criterion counts labels over all rows
    reference_logps = (None, None) if reference is None else (reference[:, 0], reference[:, 1])
    with paddle.amp.auto_cast(False):  # sums of hundreds of log-probabilities need float32
        return logits, criterion(rows, (labels.reshape([1, -1]), np.array(responses), *reference_logps))


class DPOTrainer(PretrainTrainer):
    """Trains on pairs with PaddleFormers' ``criterion``, the mean loss over the pairs of a step.

    With l the log-probability of an answer under the policy and l_ref under the reference, the reward of an
    answer is beta (l - l_ref). ``accuracies`` is the fraction of pairs with a higher reward for the chosen
    answer, and ``margins`` the mean reward difference. PaddleFormers and TRL use the same names.
    """

    FIGURES = (
        "rewards/chosen",
        "rewards/rejected",
        "rewards/accuracies",
        "rewards/margins",
        "logps/chosen",
        "logps/rejected",
    )

    def __init__(self, *args, criterion: Callable, preference: PreferenceArguments, **kwargs):
        super().__init__(*args, **kwargs)
        self._pairs_criterion, self._preference = criterion, preference
        self._figures = np.zeros(len(self.FIGURES))

    def baseline(self) -> Baseline:
        """The loss of the reference model (all log-ratios are 0)."""
        loss, formula = {
            "sigmoid": (math.log(2), "ln 2"),
            "hinge": (1.0, "1"),
            "ipo": (0.25 / self._preference.dpo_beta**2, "1 / (2 beta)^2"),
        }[self._preference.dpo_loss]
        return Baseline(loss, "the reference", formula, "mean over pairs")

    def batch_loss(self, model, inputs):
        if self._last_inputs is not None:  # for another forward pass
            self._last_inputs = {name: value for name, value in inputs.items() if name not in LAYOUT}
        if not inputs["responses"]:  # evaluation padding; other ranks have pairs
            self._figures = np.zeros(len(self.FIGURES))
            return paddle.full([], float("nan")), logits_of(model, inputs)
        logits, (chosen, rejected, _, _, loss) = logits_and_criterion(model, inputs, self._pairs_criterion)
        self._figures = self._measured(chosen, rejected, inputs["reference"])
        return loss, logits

    def batch_figures(self) -> np.ndarray:
        return self._figures

    def _measured(self, chosen, rejected, reference) -> np.ndarray:
        with paddle.no_grad():
            logps = paddle.stack([chosen, rejected], axis=1).astype("float32")
            values = paddle.concat([logps, reference], axis=1).numpy().astype(np.float64)
        logps, reference = values[:, :2], values[:, 2:]
        rewards = self._preference.dpo_beta * (logps - reference)
        margins = rewards[:, 0] - rewards[:, 1]
        return np.array([*rewards.mean(0), (margins > 0).mean(), margins.mean(), *logps.mean(0)])


def fingerprint(run: RunConfig, source: Corpus, tokenizer, parts: Sequence[PairRows]) -> dict[str, object]:
    """Everything that determines the log-probabilities of ``parts``, up to rounding."""
    folder, training = Path(run.model.model_name_or_path), run.training
    low = "bfloat16" if training.bf16 else "float16" if training.fp16 else None
    return {
        "weights": weights.digest(folder),
        "config": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        "layers": run.model.num_hidden_layers,
        "dtype": f"{low} {training.fp16_opt_level}" if low else "float32",
        "data": source.fingerprint(),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "chat_template": chat_template.fingerprint(tokenizer),
        "max_seq_length": run.data.max_seq_length,
        "pairs": [[len(part.sizes), int(part.sizes.sum())] for part in parts],
        "split": run.data.split,
        "per token": run.preference.dpo_loss == "ipo",
    }


def cached_folder(key: Mapping[str, object], cache: str | None) -> Path:
    """The folder of the log-probabilities with the fingerprint ``key``."""
    return cache_folder(cache) / _name(key)


def reference_logps(
    parts: Sequence[PairRows],
    key: Mapping[str, object],
    cache: str | None,
    compute: Callable[[], list[np.ndarray]],
) -> tuple[list[np.ndarray], bool]:
    """The log-probabilities of all pairs of each split, float32 [pairs, 2], and whether they were cached.

    ``compute`` is called if they were not. Collective. Raises UserError for a damaged cache.
    """
    ranks, logps, folder = Ranks.of_run(), None, cached_folder(key, cache)
    with ranks.raise_on_all_ranks():
        if ranks.first and folder.is_dir():
            logps = _read(folder, key, parts)
    logps = ranks.from_first(logps)
    if logps is not None:
        return logps, True
    logps = compute()
    with ranks.raise_on_all_ranks():
        if ranks.first:
            cached(_name(key), lambda new: _write(new, key, logps), cache)
    return logps, False


def compute_logps(trainer, parts: Sequence[PairRows], criterion: Callable) -> list[np.ndarray]:
    """Compute the log-probabilities with the trainer's model in its current state.

    Collective: each rank computes a share of the batches.
    """
    rows_of_batch = trainer.args.per_device_train_batch_size
    batches = [
        (number, range(first, min(first + rows_of_batch, len(part))))
        for number, part in enumerate(parts)
        for first in range(0, len(part), rows_of_batch)
    ]
    own = []
    trainer.model.eval()
    with paddle.no_grad(), trainer.autocast_smart_context_manager():
        for number, rows in Ranks.of_run().share(batches):
            batch = trainer.data_collator([parts[number][row] for row in rows])
            tensors = {
                name: paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
                for name, value in batch.items()
            }
            _, logps = logits_and_criterion(trainer.model, tensors, criterion)
            pairs = [pair for row in rows for pair in parts[number].numbers(row)]
            own.append((number, pairs, np.stack([answer.numpy() for answer in logps], axis=1)))
    trainer.model.train()
    all_logps = [np.full((len(part.sizes), 2), np.nan, dtype=np.float32) for part in parts]
    for of_rank in Ranks.of_run().gather(own):
        for number, pairs, logps in of_rank:
            all_logps[number][pairs] = logps
    _check_finite(all_logps)
    return all_logps


@contextlib.contextmanager
def initial_weights(model, run: RunConfig, checkpoint: Path | None) -> Iterator[None]:
    """Within the context, ``model`` has the weights that training started from.

    ``checkpoint``: the checkpoint of a resumed run; ``model`` has its weights before and after.
    """
    if lora.is_wrapped(model):
        with lora.without(model):
            yield
        return
    if checkpoint is not None:
        weights.load(model, run.model.model_name_or_path)
    yield
    if checkpoint is not None:
        run_model.load_weights(model, checkpoint)


def _check_finite(parts: Sequence[np.ndarray]) -> None:
    for logps in parts:
        if not np.isfinite(logps).all():
            pair = int(np.flatnonzero(~np.isfinite(logps).all(axis=1))[0])
            raise UserError(
                f"the reference model's log-probabilities of pair {pair} are {logps[pair].tolist()}; check "
                "the weights in --model_name_or_path, or set --bf16 instead of --fp16"
            )


def _name(key: Mapping[str, object]) -> str:
    return f"reference-{hashlib.sha256(strict_json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}"


def _write(folder: Path, key: Mapping[str, object], parts: Sequence[np.ndarray]) -> None:
    for number, logps in enumerate(parts):
        np.save(folder / f"{number}.npy", logps)
    (folder / RECORD).write_text(strict_json.dumps(key, indent=2, sort_keys=True) + "\n")


def _read(folder: Path, key: Mapping[str, object], parts: Sequence[PairRows]) -> list[np.ndarray]:
    if plain_json.mapping(folder / RECORD) != json.loads(strict_json.dumps(key)):
        raise UserError(
            f"{folder / RECORD} is for a different model or data; delete the folder to rebuild it"
        )
    sizes = [(len(part.sizes), 2) for part in parts]
    arrays = mapped_arrays(
        folder,
        {str(number): (np.float32, 2) for number in range(len(parts))},
        lambda *logps: (
            [part.shape for part in logps] == sizes and all(np.isfinite(part).all() for part in logps)
        ),
    )
    return [np.array(logps) for logps in arrays]


class DPO(Feature):
    """``--stage dpo`` as a feature of a run."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.data.stage == "dpo"

    def configure(self, run: Run) -> None:
        from llm_npu.models.paddleformers.adapter import preference_criterion  # imports the library

        preference = run.arguments.preference
        self._criterion = preference_criterion(
            run.model_config, preference.dpo_loss, preference.dpo_beta, preference.dpo_label_smoothing
        )
        run.trainer_kind = functools.partial(DPOTrainer, criterion=self._criterion, preference=preference)

    def on_trainer(self, run: Run) -> None:
        parts = [run.samples.train]
        if run.arguments.training.do_eval:
            parts.append(run.samples.valid)
        if run.device.dry:  # values do not matter
            reference = [np.zeros((len(part.sizes), 2), np.float32) for part in parts]
        else:
            reference = self._reference(run, parts)
        for part, logps in zip(parts, reference, strict=True):
            part.reference = logps

    def _reference(self, run: Run, parts: list) -> list[np.ndarray]:
        arguments, began = run.arguments, time.perf_counter()
        key = fingerprint(arguments, run.text, run.tokenizer, parts)

        def compute() -> list[np.ndarray]:
            with initial_weights(run.model, arguments, run.checkpoint):
                return compute_logps(run.trainer, parts, self._criterion)

        logps, was_cached = reference_logps(parts, key, arguments.data.data_cache, compute)
        if ranks.is_first():
            pairs = f"{sum(map(len, logps)):,} pairs"
            how = "read from" if was_cached else f"computed in {time.perf_counter() - began:.1f} s, kept in"
            folder = cached_folder(key, arguments.data.data_cache)
            say(f"reference {pairs}: log-probabilities {how} {folder}")
        return logps
