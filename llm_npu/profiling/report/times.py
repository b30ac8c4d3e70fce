"""Exact conversion of profilers' microseconds to integer nanoseconds.

msprof writes microseconds since 1970 with three decimals, in JSON often as a string. They exceed the
precision of float64 (0.25 microseconds at that magnitude). After rounding, adjacent kernels would overlap,
and viewers would nest them.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from llm_npu.core.errors import UserError

FARTHEST = 1 << 62  # nanoseconds, or 146 years; the sum of two still fits into 64 bits
LONGEST = 366 * 86_400 * 10**9  # maximum task duration in nanoseconds


def nanoseconds(microseconds: str | int) -> int:
    """Exact nanoseconds; digits beyond the third decimal are truncated. Raises ValueError for implausible
    times.

    >>> nanoseconds("1699529623106750.123")
    1699529623106750123
    """
    if type(microseconds) not in (str, int):  # true, null, NaN
        raise UserError(f"{microseconds!r:.40} is not a number of microseconds")
    time = microseconds * 1000 if isinstance(microseconds, int) else _of_text(microseconds)
    if abs(time) >= FARTHEST:
        raise UserError(f"{microseconds!r:.40} microseconds is not a valid time of a profile")
    return time


def moment(microseconds: str | int) -> int:
    """`nanoseconds` of a point in time; raises ValueError if it is negative."""
    if (time := nanoseconds(microseconds)) < 0:
        raise UserError(f"{microseconds!r:.40} is before the clock's origin")
    return time


def length(microseconds: str | int) -> int:
    """`nanoseconds` of a duration; raises ValueError unless it is from 0 to a year."""
    if not 0 <= (time := nanoseconds(microseconds)) <= LONGEST:
        raise UserError(f"{microseconds!r:.40} microseconds is not a valid task duration")
    return time


def whole(number: object) -> int:
    """``number``, possibly text, as an integer; raises ValueError unless it fits into 64 bits."""
    integer = int(number)
    if abs(integer) >= FARTHEST:
        raise UserError(f"{number!r:.40} does not fit into 64 bits")
    return integer


def _of_text(microseconds: str) -> int:
    whole, _, decimals = microseconds.partition(".")
    if whole.isdecimal() and (not decimals or decimals.isdecimal()):
        return int(whole) * 1000 + int((decimals + "000")[:3])
    try:
        number = Decimal(microseconds.strip())  # blanks, tabs, signs, exponents
        return int(number * 1000) if number.adjusted() < 20 else FARTHEST
    except (InvalidOperation, ValueError, OverflowError):
        raise UserError(f"{microseconds!r:.40} is not a number of microseconds") from None


def text(duration: float) -> str:
    """``duration``, in nanoseconds, formatted with three digits and a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(duration) >= 0.9995 * size:
            value = duration / size
            return f"{value:.2f} {unit}" if abs(value) < 9.995 else f"{value:.1f} {unit}"
    return f"{duration:.0f} ns"
