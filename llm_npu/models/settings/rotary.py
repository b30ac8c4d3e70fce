"""The scaling of the rotary embedding in a config.json.

``rope_scaling`` (or ``rope_parameters`` in transformers 5) has a kind and its parameters. ``normalized``
converts both to one form, ``check`` rejects what the family's class does not support, and ``as_library``
renames the fields for the class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from llm_npu.core.errors import UserError
from llm_npu.models.family import Family

# {kind: (required fields, optional fields)}
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
IGNORED = ("finetuned",)  # describes the origin of the weights
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
            f"{file} has two scalings of the rotary embedding, {entries[0]} and "
            f"{next(entry for entry in entries if entry != entries[0])}; keep one"
        )
    if len(thetas) > 1:
        raise UserError(f"{file} has two values of rope_theta, {' and '.join(map(str, thetas))}; keep one")
    scaled = entries and entries[0]["rope_type"] != "default"
    return fields | {"rope_scaling": entries[0] if scaled else None}


def _entry(name: str, value: object, file: object) -> dict[str, object] | None:
    """The scaling in the field ``name``, with the key ``rope_type``; None if it is empty."""
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise UserError(
            f"{file} has {name} {value!r:.{SHOWN}}, but must have null or a mapping, such as "
            '{"rope_type": "linear", "factor": 2.0}'
        )
    if any(isinstance(item, dict) for item in value.values()):
        raise UserError(f"{file} has a {name} for each kind of layer; accepted: one for all layers")
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
    """The scaling in PaddleNLP's own fields, which its checkpoints have in addition to transformers'."""
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
    """Raise UserError if the class does not support the scaling, or a parameter is missing or invalid."""
    scaling = fields.get("rope_scaling")
    if scaling is None:
        return
    kind = scaling["rope_type"]
    if kind not in family.rope_scalings:
        accepted = (
            f"supports only {', '.join(family.rope_scalings)}" if family.rope_scalings else "supports none"
        )
        raise UserError(f"{file} has rope_scaling {kind:.{SHOWN}}, but {library} {accepted}")
    needed, optional = KINDS[kind]
    what = f"{file} has rope_scaling {kind}"
    if missing := [name for name in needed if name not in scaling]:
        raise UserError(f"{what} without {', '.join(missing)}; add the missing fields")
    if extra := [name for name in scaling if name not in ("rope_type", *needed, *optional)]:
        raise UserError(
            f"{what} with {extra[0]!r:.{SHOWN}}, which is not a field of {kind} scaling; remove it"
        )
    for name, value in scaling.items():
        if name not in ("rope_type", "truncate", *LISTS):
            _check_number(what, name, value)
    if not isinstance(scaling.get("truncate", True), bool):
        raise UserError(
            f"{what} with truncate {scaling['truncate']!r:.{SHOWN}}, but it must be true or false"
        )
    if kind == "llama3" and not scaling["low_freq_factor"] < scaling["high_freq_factor"]:
        raise UserError(
            f"{what} with low_freq_factor {scaling['low_freq_factor']}, but it must be below "
            f"high_freq_factor {scaling['high_freq_factor']}"
        )
    if kind == "yarn" and scaling.get("beta_fast", 32) <= scaling.get("beta_slow", 1):
        raise UserError(f"{what} with beta_fast not greater than beta_slow; the defaults are 32 and 1")
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
    """Check factors that the library's classes derive from the positions before and after scaling."""
    scaling, kind = fields["rope_scaling"], fields["rope_scaling"]["rope_type"]
    positions = fields.get("max_position_embeddings", family.defaults.get("max_position_embeddings"))
    outside = fields.get(ORIGINAL) if kind == "longrope" else None
    original = scaling.get(ORIGINAL, outside)
    if original is None or not _is_number(positions):
        return
    if outside is not None and outside != original:
        raise UserError(
            f"{what} with two values of {ORIGINAL}, {original} and {outside!r:.{SHOWN}}; keep one"
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
            f"{what} with factor {factor}, but the library uses max_position_embeddings / "
            f"{ORIGINAL} = {positions} / {original}; set max_position_embeddings to "
            f"{round(factor * original)}"
        )


def _pairs(family: Family, fields: Mapping[str, object]) -> int:
    """Half the size of the rotated part of a head; 0 for invalid sizes, which are rejected elsewhere."""
    stated = {**family.defaults, **fields}
    size = stated.get("qk_rope_head_dim") or stated.get("head_dim")
    if size is None and all(
        isinstance(stated.get(name), int) for name in ("hidden_size", "num_attention_heads")
    ):
        size = stated["hidden_size"] // max(stated["num_attention_heads"], 1)
    return size // 2 if isinstance(size, int) else 0


def as_library(family: Family, fields: Mapping[str, object]) -> dict[str, object]:
    """Convert ``fields`` of a config.json for the family's configuration class."""
    fields, scaling = dict(fields), fields.get("rope_scaling")
    if scaling is None and family.needs_rope_scaling:
        scaling = fields["rope_scaling"] = {"rope_type": "linear", "factor": 1.0}  # neutral
    if scaling is None:
        return fields
    if own := family.rope_scalings.get(scaling["rope_type"]):
        del fields["rope_scaling"]
        return fields | {"rope_scaling_type": own, "rope_scaling_factor": scaling["factor"]}
    if scaling["rope_type"] == "longrope" and ORIGINAL in scaling:
        fields[ORIGINAL] = scaling[ORIGINAL]  # the library reads it only there
    if family.reads_rope_parameters:
        fields["rope_parameters"] = dict(scaling)
    return fields


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
