"""Numbers as people read them."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """Writes a number of bytes, such as `"15.7 GiB"`."""
    for unit in ("bytes", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{_short(count)} {unit}"
        count /= 1024
    return f"{_short(count)} GiB"


def count_text(count: float) -> str:
    """Writes a count, such as `"1.23 M"`; exactly below ten thousand."""
    if abs(count) < 10_000:
        return f"{count:,.0f}"
    for unit in ("k", "M", "G"):
        count /= 1000
        if abs(count) < 1000:
            return f"{_short(count)} {unit}"
    return f"{_short(count / 1000)} T"


def flop_text(count: float) -> str:
    """Writes a number of operations, such as `"146 GFLOP"`."""
    text = count_text(count)
    return f"{text}FLOP" if text[-1].isalpha() else f"{text} FLOP"


def seconds_text(seconds: float) -> str:
    """Writes a duration, such as `"12.3 ms"`."""
    if seconds >= 1:
        return f"{_short(seconds)} s"
    if seconds >= 1e-3:
        return f"{_short(seconds * 1e3)} ms"
    return f"{_short(seconds * 1e6)} µs"


def _short(value: float) -> str:
    """Writes three digits, or the whole number where it has more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
