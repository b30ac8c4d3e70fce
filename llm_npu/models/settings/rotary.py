"""The scaling of the rotary embedding that a config.json asks for.

``rope_scaling`` (or ``rope_parameters``, of transformers 5) names a kind and its numbers. ``normalized``
gives one form of both, ``check`` refuses what the family's class would not compute, and ``as_library`` gives
the fields under the names that the class reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from llm_npu.core.errors import UserError
from llm_npu.models.family import Family

# {kind: (fields that it needs, fields that it may have)}
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ("original_max_position_embeddings",)),
    "ntk": (("factor",), ()),  # PaddleNLP's own
    "yarn": (
        ("factor",),
        (
            *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"),
            *("mscale_all_dim", "truncate"),
        ),
    ),
    "longrope": (
        ("short_factor", "long_factor"),
        ("factor", "attention_factor", "original_max_position_embeddings"),
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
}
AT_LEAST_1 = ("factor", "original_max_position_embeddings")
LISTS = ("short_factor", "long_factor")
IGNORED = ("finetuned",)  # says how the weights were made
ORIGINAL = "original_max_position_embeddings"
OWN = ("rope_scaling_type", "rope_scaling_factor")  # fields of PaddleNLP
SHOWN = 40


def normalized(fields: Mapping[str, object], family: Family | None, file: object) -> dict[str, object]:
    """``fields`` with one ``rope_scaling``, {"rope_type": kind, ...} or None, and one ``rope_theta``."""
    fields = dict(fields)
    stated = {name: fields.pop(name) for name in ("rope_scaling", "rope_parameters") if name in fields}
    if not stated and not any(name in fields for name in OWN):
        return fields
    entries, thetas = [], {fields["rope_theta"]} if _is_number(fields.get("rope_theta")) else set()
    for name, value in stated.items():
        entry = _entry(name, value, file)
        if entry is None:
            continue
        if (theta := entry.pop("rope_theta", None)) is not None:
            fields.setdefault("rope_theta", theta)
            thetas |= {theta} if _is_number(theta) else set()
        if (part := entry.pop("partial_rotary_factor", None)) is not None:
            fields["partial_rotary_factor"] = part
        entries.append(entry if entry["rope_type"] != "default" else {"rope_type": "default"})
    if (own := _own(fields, family, file)) is not None:
        entries.append(own)
    if any(entry != entries[0] for entry in entries):
        raise UserError(
            f"{file} asks for two scalings of its rotary embedding, {entries[0]} and "
            f"{next(entry for entry in entries if entry != entries[0])}; leave one"
        )
    if len(thetas) > 1:
        raise UserError(f"{file} has two values of rope_theta, {' and '.join(map(str, thetas))}; leave one")
    scaled = entries and entries[0]["rope_type"] != "default"
    return fields | {"rope_scaling": entries[0] if scaled else None}


def _entry(name: str, value: object, file: object) -> dict[str, object] | None:
    """The scaling that the field ``name`` asks for, under the key ``rope_type``; None for an empty one."""
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise UserError(
            f"{file} has {name} {value!r:.{SHOWN}}, but must have null or a mapping, such as "
            '{"rope_type": "linear", "factor": 2.0}'
        )
    if any(isinstance(item, dict) for item in value.values()):
        raise UserError(f"{file} gives {name} for each kind of layer; accepted: one for all layers")
    kinds = {value[key] if isinstance(value[key], str) else repr(value[key]) for key in ("rope_type", "type")
             if value.get(key) is not None}  # fmt: skip
    rest = {key: item for key, item in value.items() if key not in ("rope_type", "type", *IGNORED)}
    rest = {key: item for key, item in rest.items() if item is not None}
    if not kinds and rest.keys() <= {"rope_theta", "partial_rotary_factor"}:
        kinds = {"default"}
    if len(kinds) != 1:
        stated = f"the kinds {' and '.join(sorted(kinds))}" if kinds else "no kind"
        raise UserError(f"{file} has {name} with {stated:.80}; accepted: one rope_type, such as linear")
    [kind] = kinds
    if kind == "default" and (extra := rest.keys() - {"rope_theta", "partial_rotary_factor"}):
        raise UserError(
            f"{file} has {name} of kind default with {min(extra)!r:.{SHOWN}}, which scales nothing"
        )
    return {"rope_type": kind, **rest}


def _own(fields: dict[str, object], family: Family | None, file: object) -> dict[str, object] | None:
    """What PaddleNLP's own fields ask for, which its checkpoints have beside those of transformers."""
    own, factor = (fields.pop(name, None) for name in OWN)
    if own is None:
        if factor not in (None, 1):
            raise UserError(f"{file} has rope_scaling_factor {factor!r:.{SHOWN}} without rope_scaling_type")
        return None
    names = {library: kind for kind, library in (family.rope_scalings if family else {}).items() if library}
    kind = names.get(own) if isinstance(own, str) else None
    if kind is None:
        accepted = ", ".join(names) if names else "none"
        raise UserError(f"{file} has rope_scaling_type {own!r:.{SHOWN}}; accepted: {accepted}")
    return {"rope_type": kind} | ({} if factor is None else {"factor": factor})


def check(family: Family, fields: Mapping[str, object], file: object, library: str) -> None:
    """UserError if the family's class does not compute the scaling, or a number of it is missing or wrong."""
    scaling = fields.get("rope_scaling")
    if scaling is None:
        return
    kind = scaling["rope_type"]
    if kind not in family.rope_scalings:
        accepted = f"reads {', '.join(family.rope_scalings)} only" if family.rope_scalings else "has none"
        raise UserError(f"{file} asks for rope_scaling {kind:.{SHOWN}}, but {library} {accepted}")
    needed, optional = KINDS[kind]
    what = f"{file} asks for rope_scaling {kind}"
    if missing := [name for name in needed if name not in scaling]:
        raise UserError(f"{what} without {', '.join(missing)}; add what is missing")
    if extra := [name for name in scaling if name not in ("rope_type", *needed, *optional)]:
        raise UserError(f"{what} with {extra[0]!r:.{SHOWN}}, which that kind does not have; leave it out")
    for name, value in scaling.items():
        if name not in ("rope_type", "truncate", *LISTS):
            _check_number(what, name, value)
    if not isinstance(scaling.get("truncate", True), bool):
        raise UserError(f"{what} with truncate {scaling['truncate']!r:.{SHOWN}}, but it is true or false")
    if kind == "llama3" and not scaling["low_freq_factor"] < scaling["high_freq_factor"]:
        raise UserError(
            f"{what} with low_freq_factor {scaling['low_freq_factor']}, but it must be below "
            f"high_freq_factor {scaling['high_freq_factor']}"
        )
    if kind == "yarn" and scaling.get("beta_fast", 32) <= scaling.get("beta_slow", 1):
        raise UserError(f"{what} with a beta_fast that is not above beta_slow; they are 32 and 1 by default")
    if kind == "longrope":
        _check_longrope(family, fields, what)
    _check_positions(family, fields, what)


def _check_number(what: str, name: str, value: object) -> None:
    least = 1 if name in AT_LEAST_1 else 0
    whole = name == ORIGINAL
    number = isinstance(value, int) or (isinstance(value, float) and (math.isfinite(value) and not whole))
    if isinstance(value, bool) or not number or value < least or (least == 0 and value == 0):
        kind = "a whole number" if whole else "a number"
        limit = f"of {least} or more" if least else "above 0"
        raise UserError(f"{what} with {name} {value!r:.{SHOWN}}, but it must be {kind} {limit}")


def _check_longrope(family: Family, fields: Mapping[str, object], what: str) -> None:
    scaling, pairs = fields["rope_scaling"], _pairs(family, fields)
    for name in LISTS:
        values = scaling[name]
        if not isinstance(values, list) or len(values) != pairs:
            count = f"{len(values)} numbers" if isinstance(values, list) else f"{values!r:.{SHOWN}}"
            raise UserError(
                f"{what} with {name} {count}, but it must have one for each of {pairs} rotated pairs"
            )
        for value in values:
            _check_number(what, name, value)
    if "factor" not in scaling and ORIGINAL not in (*scaling, *fields) and "attention_factor" not in scaling:
        raise UserError(f"{what} without factor or {ORIGINAL}; add one of them")


def _check_positions(family: Family, fields: Mapping[str, object], what: str) -> None:
    """Factors that follow from the positions before and after scaling, which the library's classes use."""
    scaling, kind = fields["rope_scaling"], fields["rope_scaling"]["rope_type"]
    positions = fields.get("max_position_embeddings", family.defaults.get("max_position_embeddings"))
    outside = fields.get(ORIGINAL) if kind == "longrope" else None
    original = scaling.get(ORIGINAL, outside)
    if original is None or not _is_number(positions):
        return
    if outside is not None and outside != original:
        raise UserError(
            f"{what} with two values of {ORIGINAL}, {original} and {outside!r:.{SHOWN}}; leave one"
        )
    _check_number(what, ORIGINAL, original)
    if kind == "dynamic" and original != positions:
        raise UserError(
            f"{what} with {ORIGINAL} {original}, but the library scales from max_position_embeddings "
            f"{positions}; make them equal"
        )
    factor = scaling.get("factor")
    if kind in ("yarn", "longrope") and factor is not None and factor != positions / original:
        raise UserError(
            f"{what} with factor {factor}, but the library computes with max_position_embeddings / "
            f"{ORIGINAL} = {positions} / {original}; set max_position_embeddings to "
            f"{round(factor * original)}"
        )


def _pairs(family: Family, fields: Mapping[str, object]) -> int:
    """Half the size of the rotated part of a head; 0 if the sizes are no numbers, which others refuse."""
    stated = {**family.defaults, **fields}
    size = stated.get("qk_rope_head_dim") or stated.get("head_dim")
    if size is None and all(
        isinstance(stated.get(name), int) for name in ("hidden_size", "num_attention_heads")
    ):
        size = stated["hidden_size"] // max(stated["num_attention_heads"], 1)
    return size // 2 if isinstance(size, int) else 0


def as_library(family: Family, fields: Mapping[str, object]) -> dict[str, object]:
    """``fields`` of a config.json as the family's configuration class takes them."""
    fields, scaling = dict(fields), fields.get("rope_scaling")
    if scaling is None and family.needs_rope_scaling:
        scaling = fields["rope_scaling"] = {"rope_type": "linear", "factor": 1.0}  # changes nothing
    if scaling is None:
        return fields
    if own := family.rope_scalings.get(scaling["rope_type"]):
        del fields["rope_scaling"]
        return fields | {"rope_scaling_type": own, "rope_scaling_factor": scaling["factor"]}
    if scaling["rope_type"] == "longrope" and ORIGINAL in scaling:
        fields[ORIGINAL] = scaling[ORIGINAL]  # the library looks for it there only
    if family.reads_rope_parameters:
        fields["rope_parameters"] = dict(scaling)
    return fields


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
