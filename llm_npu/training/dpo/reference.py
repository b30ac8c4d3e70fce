"""The reference model's log-probabilities of all answers: computed once, and cached.

The cache's folder is named by a fingerprint of all that they depend on, and holds it (`fingerprint`). A
resumed run, or another one from the same model and data, reads what the first has computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import paddle

from llm_npu.config import RunConfig
from llm_npu.core.cache import cache_folder, cached, mapped_arrays
from llm_npu.core.errors import UserError
from llm_npu.core.ranks import Ranks
from llm_npu.core.untrusted import plain_json
from llm_npu.data.pairs import PairRows
from llm_npu.data.text import chat_template
from llm_npu.data.text.corpus import Corpus
from llm_npu.data.text.tokenizer import fingerprint as tokenizer_fingerprint
from llm_npu.models import lora, weights
from llm_npu.training import model as run_model
from paddle_fused import strict_json

from .trainer import answers

RECORD = "reference.json"


def fingerprint(run: RunConfig, source: Corpus, tokenizer, parts: Sequence[PairRows]) -> dict[str, object]:
    """What the log-probabilities of ``parts`` depend on, besides rounding."""
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


def load(
    parts: Sequence[PairRows],
    key: Mapping[str, object],
    cache: str | None,
    compute: Callable[[], list[np.ndarray]],
) -> tuple[list[np.ndarray], bool]:
    """The log-probabilities of all pairs of each part, float32 [pairs, 2], and whether the cache had them.

    ``compute``, collective, makes them if not. UserError for a damaged cache.
    """
    ranks, found, folder = Ranks.of_run(), None, cached_folder(key, cache)
    with ranks.raise_on_all_ranks():
        if ranks.first and folder.is_dir():
            found = _read(folder, key, parts)
    found = ranks.from_first(found)
    if found is not None:
        return found, True
    found = compute()
    with ranks.raise_on_all_ranks():
        if ranks.first:
            cached(_name(key), lambda new: _write(new, key, found), cache)
    return found, False


def computed(trainer, parts: Sequence[PairRows], criterion: Callable) -> list[np.ndarray]:
    """By the trainer's model as it is: each rank takes a share of the batches. Collective."""
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
            _, logps = answers(trainer.model, tensors, criterion)
            pairs = [pair for row in rows for pair in parts[number].numbers(row)]
            own.append((number, pairs, np.stack([each.numpy() for each in logps], axis=1)))
    trainer.model.train()
    found = [np.full((len(part.sizes), 2), np.nan, dtype=np.float32) for part in parts]
    for theirs in Ranks.of_run().gather(own):
        for number, pairs, logps in theirs:
            found[number][pairs] = logps
    _check_finite(found)
    return found


@contextlib.contextmanager
def initial_weights(model, run: RunConfig, checkpoint: Path | None) -> Iterator[None]:
    """Inside, ``model`` computes with the weights that the training started from.

    ``checkpoint``: that of a resumed run, whose weights ``model`` has before and after; else None.
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


def _check_finite(found: Sequence[np.ndarray]) -> None:
    for logps in found:
        if not np.isfinite(logps).all():
            pair = int(np.flatnonzero(~np.isfinite(logps).all(axis=1))[0])
            raise UserError(
                f"the reference model's log-probabilities of pair {pair} are {logps[pair].tolist()}; look at "
                "the weights in --model_name_or_path, or give --bf16 instead of --fp16"
            )


def _name(key: Mapping[str, object]) -> str:
    return f"reference-{hashlib.sha256(strict_json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}"


def _write(folder: Path, key: Mapping[str, object], found: Sequence[np.ndarray]) -> None:
    for number, logps in enumerate(found):
        np.save(folder / f"{number}.npy", logps)
    (folder / RECORD).write_text(strict_json.dumps(key, indent=2, sort_keys=True) + "\n")


def _read(folder: Path, key: Mapping[str, object], parts: Sequence[PairRows]) -> list[np.ndarray]:
    if plain_json.mapping(folder / RECORD) != json.loads(strict_json.dumps(key)):
        raise UserError(
            f"{folder / RECORD} names another model or other data than this run's; delete the folder to "
            "rebuild it"
        )
    sizes = [(len(part.sizes), 2) for part in parts]
    found = mapped_arrays(
        folder,
        {str(number): (np.float32, 2) for number in range(len(parts))},
        lambda *logps: [each.shape for each in logps] == sizes and all(np.isfinite(e).all() for e in logps),
    )
    return [np.array(logps) for logps in found]
