"""Batched text generation with PaddleNLP's ``generate``: greedy, sampling or beam search.

Prompts of different lengths form one left-padded batch, with positions counted from each prompt's first
token. Every row gets the same tokens as its prompt would get alone.

B prompts (rows), T tokens of the longest prompt.
"""

from __future__ import annotations

import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import paddle
from paddle.jit.dy2static.program_translator import StaticFunction

from llm_npu.core.errors import UserError
from llm_npu.data.text import encoding
from llm_npu.models.families import FAMILIES

from .options import check_family

# Strategy -> its name in PaddleNLP's ``generate``.
STRATEGIES = {"greedy": "greedy_search", "sampling": "sampling", "beam": "beam_search"}
BEAMS = 4


@dataclass(frozen=True)
class Generated:
    """Generated tokens and timings.

    Attributes:
        ids: the new tokens of each prompt, up to the end-of-text token.
        prompt_tokens: tokens of the prefill, one forward pass of ``prefill_seconds``.
        decoded_tokens: tokens of the decode steps, which take ``decode_seconds``. Counts ``ids`` and
            end-of-text tokens, except the first token of each row, which the prefill produces.
    """

    ids: list[list[int]]
    prompt_tokens: int
    prefill_seconds: float
    decoded_tokens: int
    decode_seconds: float


def generate(
    model,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 32,
    decode: str = "greedy",
    *,
    eos_token_id: int | Sequence[int],
    **options,
) -> Generated:
    """Continue ``prompts``, lists of token ids, with a causal language model of PaddleNLP.

    A row ends at an end-of-text token, after ``max_new_tokens``, or when the longest row has no positions
    left. Mode and configuration of the model are restored. Only sampling advances the random generators.

    Args:
        decode: ``greedy``, ``sampling`` or ``beam``.
        eos_token_id: one or more end-of-text tokens; beam search uses the first.
        options: for PaddleNLP's ``generate``: ``top_k``, ``top_p``, ``temperature``, ``num_beams`` (beam
            search: 4 by default), ``length_penalty``, ``repetition_penalty``, ...

    Raises:
        UserError: without prompts, for an empty or too long prompt, for an unknown ``decode``, and for
            ``max_new_tokens`` below 1.
    """
    check_family(model.config.model_type)
    free = _check(model.config, prompts, max_new_tokens, decode)
    ends = [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
    input_ids, attention_mask = _padded(prompts)
    if decode == "beam":
        options = {"num_beams": BEAMS, **options}
        if options["num_beams"] == 1:  # the library's beam search needs at least two beams
            decode = "greedy"
    clock = _Clock()
    with inference(model), paddle.no_grad(), clock.watching(model):
        new_ids, _ = model.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,  # [B, T]; PaddleNLP's default mask has a different rank
            position_ids=(attention_mask.cumsum(axis=-1) - 1).clip(min=0),
            max_new_tokens=min(max_new_tokens, free),
            max_length=0,  # otherwise the library uses the configuration's limit, or 20 new tokens
            decode_strategy=STRATEGIES[decode],
            use_cache=True,
            eos_token_id=ends[0] if decode == "beam" or len(ends) == 1 else ends,
            pad_token_id=ends[0],
            **options,
        )
        new_ids = new_ids.tolist()  # synchronizes with the device
        clock.stop()
    ids = [_until_end(row, ends) for row in new_ids]
    ended = sum(len(row) < len(new) for row, new in zip(ids, new_ids, strict=True))
    return Generated(
        ids=ids,
        prompt_tokens=sum(len(prompt) for prompt in prompts),
        prefill_seconds=clock.prefill,
        decoded_tokens=sum(len(row) for row in ids) + ended - len(ids),
        decode_seconds=clock.decode,
    )


def continuations(
    model,
    tokenizer,
    prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int = 32,
    decode: str = "greedy",
    *,
    eos_token_id: Sequence[int] = (),
    **options,
) -> tuple[list[str], Generated]:
    """``generate`` for text: returns the continuations without the prompts, and the statistics.

    Args:
        prompts: texts, or lists of token ids, for example from ``chat_template.prompt``.
        eos_token_id: end-of-text tokens in addition to those of the tokenizer and the model.
    """
    with encoding.running(tokenizer):
        ids = [
            encoding.ids(tokenizer, [prompt], frame=True)[0].tolist() if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]
        ends = [*dict.fromkeys([*ends_of(model.config, tokenizer), *eos_token_id])]
        done = generate(model, ids, max_new_tokens, decode, eos_token_id=ends, **options)
        whole = [[*prompt, *new] for prompt, new in zip(ids, done.ids, strict=True)]
        texts = [encoding.decoded(tokenizer, rows) for rows in (ids, whole, done.ids)]
    return [_added(*three) for three in zip(*texts, strict=True)], done


def _added(start: str, whole: str, alone: str) -> str:
    """The text that ``whole`` adds to ``start``. sentencepiece drops the leading blank of ``alone``."""
    return whole.removeprefix(start) if whole.startswith(start) else alone


def continuation(model, tokenizer, prompt: str, max_new_tokens: int = 32) -> str:
    """The greedy continuation of one prompt, without the prompt. Errors as in ``generate``."""
    (text,), _ = continuations(model, tokenizer, [prompt], max_new_tokens)
    return text


def ends_of(config, tokenizer) -> list[int]:
    """End-of-text tokens of the tokenizer, and of a configuration that lists several."""
    listed = config.eos_token_id if isinstance(config.eos_token_id, (list, tuple)) else []
    return list(dict.fromkeys([tokenizer.eos_token_id, *listed]))


def positions(config) -> int:
    """The maximum row length: the model's positions, or its window, as PaddleNLP has no sliding window."""
    family = FAMILIES.get(config.model_type)  # None: PaddleNLP supports more families than the trainer
    windowed = (family and family.has_sliding_window) or getattr(config, "use_sliding_window", False)
    window = getattr(config, "sliding_window", None) if windowed else None
    return min(config.max_position_embeddings, window or config.max_position_embeddings)


def _check(config, prompts: Sequence[Sequence[int]], max_new_tokens: int, decode: str) -> int:
    """Validate the arguments; return the positions left after the longest prompt."""
    if decode not in STRATEGIES:
        raise UserError(f"decode is {decode!r}; accepted: {', '.join(STRATEGIES)}")
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens}; accepted: 1 or more")
    if not prompts:
        raise UserError("There are no prompts; pass at least one")
    if not all(len(prompt) for prompt in prompts):
        raise UserError("A prompt is empty; pass at least one token to continue")
    longest, room = max(len(prompt) for prompt in prompts), positions(config)
    if longest >= room:
        raise UserError(
            f"The prompt has {longest} tokens, but the model has {room} positions; shorten the prompt"
        )
    return room - longest


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Left-padded ids and mask (1: token, 0: padding), both int64 [B, T].

    Rows are padded with the prompt's first token, because a repetition penalty also counts masked tokens.
    """
    longest = max(len(prompt) for prompt in prompts)
    before = [longest - len(prompt) for prompt in prompts]
    ids = [[prompt[0]] * count + list(prompt) for count, prompt in zip(before, prompts, strict=True)]
    mask = [[0] * count + [1] * (longest - count) for count in before]
    return paddle.to_tensor(ids, dtype="int64"), paddle.to_tensor(mask, dtype="int64")


def _until_end(row: list[int], ends: list[int]) -> list[int]:
    return row[: next((place for place, token in enumerate(row) if token in ends), len(row))]


class _Clock:
    """Measures the first forward pass of a model, and the time after it."""

    def __init__(self):
        self._start, self._first, self._end = time.perf_counter(), None, None

    @contextmanager
    def watching(self, model) -> Iterator[None]:
        hook = model.register_forward_post_hook(self._passed)
        try:
            yield
        finally:
            hook.remove()

    def _passed(self, layer, inputs, outputs) -> None:
        if self._first is None:
            logits = outputs if isinstance(outputs, paddle.Tensor) else outputs[0]
            logits[0, -1, 0].item()  # synchronizes with the device
            self._first = time.perf_counter()

    def stop(self) -> None:
        self._end = time.perf_counter()

    @property
    def prefill(self) -> float:
        return self._first - self._start

    @property
    def decode(self) -> float:
        return self._end - self._first


@contextmanager
def inference(model) -> Iterator[None]:
    """Evaluation mode in dygraph, without PaddleNLP's own fused rotary embedding and attention.

    PaddleNLP's fused rotary embedding does not support positions, so it cannot be used with a key/value
    cache. Its call of flash_attention_npu does not support one new token with a cache. The replacements of
    ``llm_npu.surgery`` remain active: they do not read these flags. PaddleFormers has neither operator.
    """
    training, flash = model.training, getattr(model.config, "use_flash_attention", False)
    attentions = [layer for layer in model.sublayers() if hasattr(layer, "use_fused_rope")]
    rope = [layer.use_fused_rope for layer in attentions]
    captured = model.forward if isinstance(model.forward, StaticFunction) else None  # of a run with to_static
    if captured is not None:
        model.forward = captured.dygraph_function
    model.eval()
    model.config.use_flash_attention = False
    for layer in attentions:
        layer.use_fused_rope = False
    try:
        yield
    finally:
        for layer, fused in zip(attentions, rope, strict=True):
            layer.use_fused_rope = fused
        model.config.use_flash_attention = flash
        if captured is not None:
            model.forward = captured
        model.train() if training else model.eval()


@contextmanager
def whole_tables(model) -> Iterator[None]:
    """Make rotary layers return their whole tables while a program is captured.

    Otherwise a longer row extends the tables during the capture and leaves program variables in the model.
    """
    layers = [layer for layer in model.sublayers() if hasattr(layer, "cos_cached")]
    for layer in layers:
        layer.__dict__["forward"] = types.MethodType(_tables, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _tables(self, x, seq_len=None):
    return self.cos_cached.cast(x.dtype), self.sin_cached.cast(x.dtype)
