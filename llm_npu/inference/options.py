"""Options of text generation: accepted values, and the strategy that reads each option. Imports no framework.

defaults, notes = of_folder("output/checkpoint-100", {})       # reads generation_config.json
decode, chosen = resolved(defaults, {"do_sample": True, "top_p": 0.9})
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.models.ends import GENERATION_FILE
from paddle_fused.command_line import nearest_name

COLDEST = 1e-4  # dividing logits by a smaller temperature overflows float32


@dataclass(frozen=True)
class Option:
    """A generation option.

    Attributes:
        kind: int, float or bool.
        accepted: a description of the accepted values, for messages.
        accepts: ``accepts(value)`` returns whether a number is in range.
        decode: the strategy that reads the option; None for all strategies.
        neutral: the value that has no effect.
    """

    kind: type
    accepted: str
    accepts: Callable[[float], bool]
    decode: str | None = None
    neutral: float | None = None

    def rejects(self, value: object) -> bool:
        """Whether ``value`` has the wrong type or is out of range."""
        kinds = (int, float) if self.kind is float else (self.kind,)
        return type(value) not in kinds or not self.accepts(value)


def _positive(value: float) -> bool:
    return value >= 1


# The names follow Hugging Face's transformers.
OPTIONS: Mapping[str, Option] = {
    "max_new_tokens": Option(int, "1 or more", _positive),
    "max_length": Option(int, "1 or more tokens, prompt included", _positive, neutral=0),
    "repetition_penalty": Option(
        float, "a finite number above 0", lambda value: 0 < value < math.inf, neutral=1
    ),
    "do_sample": Option(bool, "True or False", lambda value: True),
    "top_k": Option(int, "0 (all tokens) or more", lambda value: value >= 0, "sampling"),
    "top_p": Option(float, "above 0, up to 1", lambda value: 0 < value <= 1, "sampling", neutral=1),
    "temperature": Option(
        float,
        f"{COLDEST:g} or more; use greedy decoding for the most likely token",
        lambda value: COLDEST <= value < math.inf,
        "sampling",
        neutral=1,
    ),
    "num_beams": Option(int, "1 or more", _positive, "beam", neutral=1),
    "length_penalty": Option(float, "a finite number", math.isfinite, "beam", neutral=1),
}
# PaddleFormers 1.2 mistakes the number of heads for the cache length in this family.
WITHOUT_CACHE = ("deepseek_v3",)
# Fields of generation_config.json that other code reads, or that describe the file.
ELSEWHERE = ("eos_token_id", "bos_token_id", "pad_token_id", "_from_model_config")
ELSEWHERE += ("transformers_version", "paddlenlp_version", "paddleformers_version")
NEUTRAL = (None, False, 0, 1, "", [], {})  # values without effect of fields that are not options
STRATEGY = "decode_strategy"  # PaddleNLP's field for the strategy
OF_STRATEGY: Mapping[str, Mapping[str, object]] = {
    "greedy_search": {"do_sample": False, "num_beams": 1},
    "sampling": {"do_sample": True, "num_beams": 1},
    "beam_search": {"do_sample": False},
}


def of_folder(folder: str | Path, explicit: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """The options set by the folder's generation_config.json, and a note on each field without effect.

    Args:
        explicit: options that override the file.

    Raises:
        UserError: for an unreadable file or an invalid value.
    """
    file = Path(folder) / GENERATION_FILE
    if not file.is_file():
        return {}, []
    fields = plain_json.mapping(file)
    options = {
        name: fields[name]
        for name, option in OPTIONS.items()
        if fields.get(name) is not None and not _is_neutral(option, fields[name])
    }
    if (strategy := fields.get(STRATEGY)) is not None:
        if strategy not in [*OF_STRATEGY]:
            raise UserError(f"{file}: {STRATEGY} is {strategy!r:.40}; accepted: {', '.join(OF_STRATEGY)}")
        options |= OF_STRATEGY[strategy]
    check(options, f"{file}: ")
    notes = [
        f"{file}: {name} {value!r:.40} is not applied"
        for name, value in fields.items()
        if name not in (*OPTIONS, *ELSEWHERE, STRATEGY) and (value is True or value not in NEUTRAL)
    ]
    decode = _strategy(options)
    if not {"do_sample", "num_beams"} & explicit.keys():
        unread = [name for name in options if _unread(name, decode)]
        notes += [f"{file}: {name} {options[name]} has no effect with {decode} decoding" for name in unread]
    return options, notes


def check_family(model_type: str) -> None:
    """Raise UserError for a family that does not support generation."""
    if model_type in WITHOUT_CACHE:
        raise UserError(
            f"generation for {model_type} needs a key/value cache, which PaddleFormers 1.2 does not support; "
            "use another library with the same checkpoint"
        )


def check(options: Mapping[str, object], where: str = "") -> None:
    """Raise UserError for an unknown option or an invalid value."""
    for name, value in options.items():
        known(name, OPTIONS)
        if OPTIONS[name].rejects(value):
            raise UserError(f"{where}{name} is {value!r:.40}; accepted: {OPTIONS[name].accepted}")


def known(name: str, accepted: Iterable[str]) -> None:
    """Raise UserError if ``name`` is not in ``accepted``."""
    names = [*accepted]
    if name not in names:
        meant = nearest_name(name, names)
        hint = f" Did you mean {meant}?" if meant else ""
        raise UserError(f"Unknown option {name!r}; accepted: {', '.join(names)}.{hint}")


def merged(defaults: Mapping[str, object], explicit: Mapping[str, object]) -> dict[str, object]:
    """``defaults`` updated by ``explicit``; None counts as unset. Raises UserError as `check`."""
    explicit = {name: value for name, value in explicit.items() if value is not None}
    check(explicit)
    options = {**defaults, **explicit}
    if "max_length" in explicit and "max_new_tokens" not in explicit:
        options.pop("max_new_tokens", None)
    if options.get("do_sample") and options.get("num_beams", 1) > 1:
        if "do_sample" in explicit and "num_beams" not in explicit:
            options["num_beams"] = 1
        elif "num_beams" in explicit and "do_sample" not in explicit:
            options["do_sample"] = False
    return options


def resolved(defaults: Mapping[str, object], explicit: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """The strategy (greedy, sampling or beam) and the `merged` options that it reads.

    Raises UserError as `check`, for sampling with beams, and for an explicit option without effect.
    """
    chosen = merged(defaults, explicit)
    decode = _strategy(chosen)
    if decode == "beam" and chosen.get("do_sample"):
        raise UserError(
            f"do_sample cannot be combined with num_beams={chosen['num_beams']}; set do_sample=False or "
            "num_beams=1"
        )
    for name, value in explicit.items():
        if value is not None and _unread(name, decode):
            needed = {"sampling": "do_sample=True", "beam": "num_beams=2 or more"}[OPTIONS[name].decode]
            raise UserError(f"{name} has no effect with {decode} decoding; set {needed}, or remove {name}")
    return decode, {name: value for name, value in chosen.items() if not _unread(name, decode)}


def _strategy(chosen: Mapping[str, object]) -> str:
    if chosen.get("num_beams", 1) > 1:
        return "beam"
    return "sampling" if chosen.get("do_sample") else "greedy"


def _unread(name: str, decode: str) -> bool:
    return name != "num_beams" and OPTIONS[name].decode not in (None, decode)


def _is_neutral(option: Option, value: object) -> bool:
    return option.neutral is not None and type(value) in (int, float) and value == option.neutral
