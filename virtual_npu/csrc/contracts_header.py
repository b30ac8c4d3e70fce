"""Writes the rules of the plugin, the limits and the dtypes of paddle_fused.contracts as C++, for contract.h.

Usage: contracts_header.py PACKAGE contracts.inc

A key such as "attention.head_dim" becomes rules::attention_head_dim, limits::attention_head_dim or
dtypes::attention_head_dim. PACKAGE is the folder paddle_fused, whose contracts import no other package.
"""

import json
import sys
from pathlib import Path

package, target = map(Path, sys.argv[1:3])
sys.path.insert(0, str(package.resolve().parent))
import paddle_fused.contracts as contracts  # noqa: E402


def name(key: str) -> str:
    return key.replace(".", "_")


def text(words: str) -> str:
    return json.dumps(words)  # C++ reads such a literal as JSON does: the sentences are plain ASCII


def rule_line(rule) -> str:
    error = 0 if rule.error is None else rule.error
    texts = (contracts.ERRORS.get(error, ""), rule.accepts, rule.advice)
    return f"inline constexpr Rule {name(rule.key)}{{{error}, {', '.join(map(text, texts))}}};"


def limit_line(key: str, value) -> str:
    if isinstance(value, contracts.LaterLimit):
        major, minor = value.since.split(".")
        return f"inline constexpr LaterLimit {name(key)}{{{value.value}, {major}, {minor}, {value.later}}};"
    return f"inline constexpr int64_t {name(key)} = {value};"


def dtypes_line(key: str, dtypes) -> str:
    values = ", ".join(f"paddle::DataType::{dtype.upper()}" for dtype in dtypes)
    return f"inline constexpr paddle::DataType {name(key)}[] = {{{values}}};"


lines = [f"inline constexpr char kDefaultCann[] = {text(contracts.DEFAULT_CANN)};"]
rules = [rule for rule in contracts.RULES.values() if set(rule.operators) & set(contracts.PLUGIN_OPERATORS)]
lines += ["namespace rules {", *map(rule_line, rules), "}"]
lines += ["namespace limits {", *(limit_line(*item) for item in contracts.LIMITS.items()), "}"]
lines += ["namespace dtypes {", *(dtypes_line(*item) for item in contracts.DTYPES.items()), "}"]
written = "\n".join(lines) + "\n"
if not target.exists() or target.read_text() != written:  # else nothing has to be compiled again
    target.write_text(written)
