"""Writes the plugin's rules, limits and dtypes from paddle_fused.contracts as C++, for contract.h.

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
from paddle_fused import cann_releases  # noqa: E402


def name(key: str) -> str:
    return key.replace(".", "_")


def text(words: str) -> str:
    return json.dumps(words)  # for plain ASCII, JSON and C++ string literals are the same


def number(error: int | None) -> str:
    return f"{{{error or 0}, {text(contracts.ERRORS.get(error, ''))}}}"


def rule_line(rule) -> str:
    error = rule.error_number
    by_release = error if isinstance(error, contracts.ByRelease) else None
    first, later = (by_release.value, by_release.later) if by_release else (error, error)
    since = cann_releases.index_of(by_release.since) if by_release else 0
    errors = f"{{{number(first)}, {since}, {number(later)}}}"
    return f"inline constexpr Rule {name(rule.key)}{{{errors}, {text(rule.accepts)}, {text(rule.advice)}}};"


def limit_line(key: str, value) -> str:
    if isinstance(value, contracts.ByRelease) and not value.card:
        values = f"{value.value}, {cann_releases.index_of(value.since)}, {value.later}"
        return f"inline constexpr ByRelease<int64_t> {name(key)}{{{values}}};"
    # The plugin's operators have no limit that depends on the card.
    return f"inline constexpr int64_t {name(key)} = {getattr(value, 'value', value)};"


def dtypes_line(key: str, dtypes) -> str:
    values = ", ".join(f"paddle::DataType::{dtype.upper()}" for dtype in dtypes)
    return f"inline constexpr paddle::DataType {name(key)}[] = {{{values}}};"


names = {release: short for short, release in cann_releases.SHORT_NAMES.items()}
releases = ", ".join(
    f"{{{text(release)}, {text(names.get(release, release))}}}" for release in cann_releases.RELEASES
)
lines = [f"inline constexpr Release kReleases[] = {{{releases}}};"]
lines += [f"inline constexpr char kDefaultRelease[] = {text(cann_releases.DEFAULT)};"]
defaults = ", ".join(f"{{{text(c)}, {text(r)}}}" for c, r in cann_releases.DEFAULTS_BY_CARD.items())
lines += [f"inline constexpr CardDefault kDefaultsByCard[] = {{{defaults}}};"]
lines += [f"inline constexpr char kAcceptedReleases[] = {text(cann_releases.ACCEPTED)};"]
rules = [rule for rule in contracts.RULES.values() if set(rule.operators) & set(contracts.PLUGIN_OPERATORS)]
lines += ["namespace rules {", *map(rule_line, rules), "}"]
lines += ["namespace limits {", *(limit_line(*item) for item in contracts.LIMITS.items()), "}"]
lines += ["namespace dtypes {", *(dtypes_line(*item) for item in contracts.DTYPES.items()), "}"]
written = "\n".join(lines) + "\n"
if not target.exists() or target.read_text() != written:  # avoids recompilation
    target.write_text(written)
